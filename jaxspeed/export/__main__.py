"""Writes a trained model for other programs, as ONNX, StableHLO or safetensors.

python -m jaxspeed.export runs/quickstart --format=onnx --out=digits.onnx
python -m jaxspeed.export runs/imagenette --format=stablehlo --out=imagenette.stablehlo
python -m jaxspeed.export runs/imagenette --format=safetensors --out=resnet18.safetensors

Images [n, h, w, 3] go into the first two, and probabilities [n, classes] come out, for any n:
normalisation and softmax are inside. The weights are those that the run is evaluated with. Class
names, image size and how to resize are in the file's metadata, or for StableHLO in FILE.json;
docs/serving.md has the lines that load each. ONNX has the models of the package, StableHLO also
your own (--import), safetensors the weights alone of a ResNet or ViT, for torchvision and timm.
An existing file is replaced. Standard output has one line of JSON: the file and its metadata.
"""

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config import output
from jaxspeed.export.formats.choices import FORMATS, INPUT_DTYPES
from jaxspeed.files import dump_json, expanded


def main() -> None:
  """Reads the flags and writes the file."""
  file_format = flags.DEFINE_enum("format", None, FORMATS, "The format of the file.")
  out = flags.DEFINE_string("out", None, "The file to write.")
  input_dtype = flags.DEFINE_enum(
    "input",
    "uint8",
    INPUT_DTYPES,
    "The images that go in: uint8 from 0 to 255, or float32 from 0 to 1.",
  )
  fold = flags.DEFINE_bool("fold", False, "Folds batch norms into convolutions, for onnx.")
  workdir, step = command_line.define_run()
  command_line.define_import_flag()

  def run(arguments: list[str]) -> None:
    from jaxspeed.cluster.signals import exit_on_sigterm
    from jaxspeed.data.formats.class_names import stored_class_names
    from jaxspeed.run import restore
    from jaxspeed.run.export import check_place, write_network

    folder, arguments = command_line.take_run(workdir.value, arguments)
    command_line.nothing_left(arguments)
    wanted = command_line.required("format", file_format.value)
    path = expanded(command_line.required("out", out.value), "--out")
    if wanted != "onnx":
      command_line.without_effect(f"beside --format={wanted}", fold)
    if wanted == "safetensors":
      command_line.without_effect(
        "beside --format=safetensors: it holds weights alone", input_dtype
      )
    with exit_on_sigterm():
      check_place(path, wanted)
      config = restore.load_config(folder)
      with restore.run_weights(folder, restore.for_images(config), step.value) as weights:
        names = stored_class_names(folder, config.data.classes)
        network = weights.network(names, input_dtype.value)
      if (mode := config.eval.mode) not in ("center", "rect"):
        output.note(f"the run was evaluated with eval.mode={mode}; the file sees one view, center")
      metadata = write_network(path, network, file_format=wanted, fold=fold.value)
    print(dump_json({"file": str(path), "format": wanted, **metadata}))

  command_line.run(run)


if __name__ == "__main__":
  main()
