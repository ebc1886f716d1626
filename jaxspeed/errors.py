"""Exceptions that need no traceback, and the codes with which the commands exit."""

DONE = 0  # also after SIGTERM, once everything is saved
FAULT = 1  # of the program, told in one sentence that names the file of its traceback
MISTAKE = 2  # of the user, told in one sentence
LOST_PEER = 75  # sysexits' EX_TEMPFAIL: another process ended or hangs; start the job again
SUPERSEDED = 76  # a later start of the run has taken its folder over; nothing is to be started
REQUEUE = 85  # saved after SIGUSR1, which asks for this code: start the job again
INTERRUPTED = 130  # after Ctrl-C, as shells expect: 128 and the number of SIGINT


class UserError(Exception):
  """A user's mistake, told in one sentence that names the file, field or value and what to do.

  The commands print the sentence without a traceback and exit with code 2.
  """
