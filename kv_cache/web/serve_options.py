"""The options of `serve`, which need no web server to be read."""

from dataclasses import dataclass

from kv_cache.config.schema import opt

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Which results are served, what may be named, and to whom."""

    results: str = opt(
        "results", "Folder of the results that are listed, and that runs write to; it is made if "
                   "it is not there", flag="--results", metavar="DIR",
    )  # fmt: skip
    folder: tuple[str, ...] = opt(
        (), "Folder in which paths may be named beside --results: of drives, traces, profiles; may "
            "be repeated", flag="--folder", metavar="DIR",
    )  # fmt: skip
    port: int = opt(
        8737, "Port to listen on; 0 is any that is free", low=0, high=65_535, flag="--port",
        metavar="N",
    )  # fmt: skip
    host: str = opt(
        LOOPBACK[0], "Address to listen on; one that other machines reach needs --token",
        flag="--host", metavar="ADDRESS",
    )  # fmt: skip
    token: str | None = opt(
        None, "Secret of 16 characters or more that whoever asks must know; better in the "
              "variable KV_CACHE_SERVE__TOKEN, as others see a command line",
        flag="--token", metavar="TEXT",
    )  # fmt: skip
