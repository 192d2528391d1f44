"""`python -m comln_serve.client` is the command `comln`."""

from comln_serve.client.commands import main

main(prog_name="comln")
