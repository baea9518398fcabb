"""`python -m gateway` is `bulkhead`."""

from gateway.cli import main

if __name__ == "__main__":
    main(prog_name="bulkhead")
