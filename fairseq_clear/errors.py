"""The one exception for mistakes that a user can mend."""


class UserError(ValueError):
    """A mistake of the user's: one line saying what is wrong, where (file, line, flag, value) and what to do.

    The command line prints the message alone and exits with status 2; from Python it is an ordinary ``ValueError``.
    """
