"""read_csv: what it takes, and the sentence for everything else."""

import pytest

from jaxspeed.data.formats.label_csv import read_csv
from jaxspeed.errors import UserError

ROWS = "b/2.jpg,dog\na/1.jpg,cat\nb/1.jpg,cat\n"
NAMES = ["a/1.jpg", "b/1.jpg", "b/2.jpg"]


@pytest.fixture
def read(tmp_path):
  def call(text, **options):
    content = text if isinstance(text, bytes) else text.replace("FOLDER", str(tmp_path)).encode()
    (tmp_path / "photos.csv").write_bytes(content)
    return read_csv(tmp_path / "photos.csv", **options)

  return call


@pytest.mark.parametrize(
  "text",
  [
    "file,label\n" + ROWS,
    ("file,label\n" + ROWS).encode("utf-8-sig"),
    ("file,label\n" + ROWS).replace("\n", "\r\n"),
    ("file,label\n" + ROWS).replace("\n", "\r"),
    ("file,label\n" + ROWS).replace(",", ";"),
    ("file,label\n" + ROWS).replace(",", "\t"),
    ("file,label\n" + ROWS).replace(",", " , "),
    "\n\nFilename,Class\n" + ROWS.replace("\n", "\n\n") + ",\n",
    "file_name,label\n" + ROWS.replace("b/", "./b/x/../"),
    '"file","label"\n"b/2.jpg","dog"\n"a/1.jpg",cat\nb/1.jpg,"cat"',
  ],
  ids=lambda text: repr(text)[:24],
)
def test_the_same_list_in_many_forms(read, text):
  found = read(text)
  assert found.names.decoded() == NAMES and found.label.tolist() == [0, 0, 1]
  assert found.class_names == ("cat", "dog") and found.notes == () and found.train is None


def test_other_columns_are_named_and_not_read(read):
  found = read("id,file,is_valid,label\n1,a.jpg,True,cat\n2,b.jpg,False,dog\n")
  assert found.names.decoded() == ["a.jpg", "b.jpg"]
  assert found.notes == ("columns of photos.csv that are not read: id, is_valid",)
  # The documents' own names go before the others.
  found = read("path,file,label,Class\nx,a.jpg,cat,1\n")
  assert found.names.decoded() == ["a.jpg"] and found.class_names == ("cat",)
  assert found.notes == ("columns of photos.csv that are not read: path, Class",)


def test_quoted_values_hold_separators_and_quotes(read):
  found = read('file,label\n"a,1.jpg","the ""cat"""\nb.jpg,"dog, big"\n')
  assert found.names.decoded() == ["a,1.jpg", "b.jpg"]
  assert found.class_names == ("dog, big", 'the "cat"')


def test_classes_are_sorted_and_integers_as_numbers(read):
  assert read("file,label\na,10\nb,9\nc,-1\n").class_names == ("-1", "9", "10")
  assert read("file,label\na,10\nb,9\nc,x\n").class_names == ("10", "9", "x")
  assert read("file,label\na,1.0\nb,a b\nc,Кот\n").class_names == ("1.0", "a b", "Кот")


def test_splits(read):
  head = "file,label,split\na,cat,train\nb,dog,Train\n"
  found = read(head + "c,cat,test\nd,dog,VAL\n")
  assert found.names.decoded() == ["a", "b", "d"] and found.label.tolist() == [0, 1, 1]
  assert (found.train, found.source) == (2, "photos.csv: splits train and val (test not read)")
  assert read(head + "c,cat,test\n").source.endswith(" and test")
  tuned = read(head, tune=True)
  assert tuned.names.decoded() == ["a", "b"] and tuned.train == 2


@pytest.mark.parametrize(
  "text, sentence",
  [
    ("", "has no column file or no column label"),
    ("\n \n", "has no column file or no column label"),
    ("file,label\n", "has no images: write a header line"),
    (ROWS, "has no column file or no column label: .* and it is 'b/2.jpg,dog'"),
    ("file\na\n", "has no column file or no column label"),
    ("file|label\na|b\n", "has no column file or no column label"),
    ("file,label\na,ché\n".encode("latin1"), "is not UTF-8"),
    ("file,label\n".encode("utf-16"), "is not UTF-8"),
    (b"file,label\na,b\0\n", "is not UTF-8"),
    ("file,label\na,cat\n,cat\n", "line 3, has no file"),
    ("file,label\na, \n", "line 2, has no label: write it, or leave the line out"),
    ("file,label\na,cat,fat\n", "line 2: the header names 2 columns, and this line has 3"),
    ("file,label\na\n", "line 2: the header names 2 columns, and this line has 1"),
    ("file,label\na;cat\n", "line 2: .* has 1: write ',' between columns"),
    ('file,label\na,x\nb,"x\nc,y"\n', "line 3, ends in line 4 by its double quotes: close"),
    ("x" * 200_000, "line 1, cannot be read as CSV .field larger"),
    ('file,label\n"a,cat\n', "line 2, cannot be read as CSV .*close its double quotes"),
    ('file,label\n"a"b,cat\n', "line 2, cannot be read as CSV"),
    ("file,label\na,cat\n./a,cat\n", "lines 2 and 3, both name 'a': list each image once"),
    ("file,label\na,cat\nFOLDER/a,cat\n", "lines 2 and 3, both name"),
    ("file,label\na,caf\u00e9\nb,cafe\u0301\n", "has two classes that look alike, .*: give each"),
    ("file,label\na,1\nb,01\n", "labels that are one number, such as 1 and 01"),
    ("file,label,split\na,cat,dev\n", "has the split 'dev': write train, val or test"),
    ("file,label,split\na,cat,\n", "line 2, has no split: write it"),
    ("file,label,split\na,cat,train\n", "has the split train but none of val, validation and test"),
    ("file,label,split\na,cat,val\n", "has no split train to train on.*hold_out=1"),
  ],
)
def test_other_files_are_refused_in_one_sentence(read, text, sentence):
  with pytest.raises(UserError, match=f"(?s)photos.csv.*{sentence}") as raised:
    read(text)
  assert str(raised.value).isprintable()
