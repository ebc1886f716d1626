"""The one exception that means: the user can mend this, and here is how."""


class UserError(Exception):
  """A user's mistake, told in one sentence that names the file, field or value and what to do.

  The commands print the sentence without a traceback and exit with code 2.
  """
