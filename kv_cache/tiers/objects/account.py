"""Who we are to the server: endpoint, region and keys, from where every S3 client looks for them.

Keys are handed to the client alone: no message, result or log has them. What the
client finds by itself (web identity, the containers' and the instances' metadata) never passes
through here.
"""

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kv_cache.core.errors import ConfigError, PlaceError

_ELSEWHERE = ("role_arn", "sso_session", "sso_start_url", "credential_process", "source_profile")
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_KEY = re.compile(r"[!-~]+")
_TRUE = ("true", "1", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """`source` says in a word or two where the keys come from; `options` are the client's."""

    source: str
    options: Mapping[str, str | bool] = field(default_factory=dict, repr=False)


def endpoint_of(option: str | None, environ: Mapping[str, str]) -> str | None:
    """`given`, or what the environment or the profile says; None = the service's own. Raises
    ConfigError."""
    for source, value in (
        ("s3.endpoint (--s3-endpoint)", option),
        ("AWS_ENDPOINT_URL_S3", environ.get("AWS_ENDPOINT_URL_S3")),
        ("AWS_ENDPOINT_URL", environ.get("AWS_ENDPOINT_URL")),
        ("endpoint_url of the profile", _profile(environ).get("endpoint_url")),
    ):
        if value:
            return _checked(source, value)
    return None


def region_of(option: str | None, environ: Mapping[str, str]) -> str | None:
    region = (option or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")) or _profile(
        environ
    ).get("region")
    if region and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", region):
        raise ConfigError(
            "the region of the object store is no region's name; give one with --s3-region"
        )
    return region or None


def account_of(environ: Mapping[str, str]) -> Account:
    """Return the keys, in the order of AWS's own tools. Raises PlaceError where they are named and
    cannot be had."""
    if environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE:
        return Account(source="none (unsigned requests)", options={"skip_signature": True})
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return _static("environment", {name.lower(): environ[name] for name in environ})
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN"):
        return Account(source="web identity")
    profile = _profile(environ)
    if profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        return _static("shared credentials file", profile)
    if named := [name for name in _ELSEWHERE if profile.get(name)]:
        raise PlaceError(
            f"the profile of AWS_PROFILE gets its keys by {named[0]}, which this program cannot "
            "do; put keys into the environment, as with: eval "
            '"$(aws configure export-credentials --format env)"'
        )
    if any(environ.get(name) for name in _CONTAINER):
        return Account(source="container")
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() in _TRUE:
        raise PlaceError(
            "no keys for the object store were found; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true where none are "
            "needed"
        )
    return Account(source="instance metadata")


def _static(source: str, entries: Mapping[str, str]) -> Account:
    options: dict[str, str | bool] = {
        "access_key_id": entries["aws_access_key_id"].strip(),
        "secret_access_key": entries["aws_secret_access_key"].strip(),
    }
    if entries.get("aws_session_token"):
        options["session_token"] = entries["aws_session_token"].strip()
    for name in ("access_key_id", "session_token"):  # they are in headers: obstore would panic
        if name in options and not _KEY.fullmatch(str(options[name])):
            raise PlaceError(
                f"the {name.replace('_', ' ')} for the object store ({source}) has a character "
                "that no key has, such as a blank or a line's end; set it anew"
            )
    return Account(source=source, options=options)


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the profile's lines, those of the credentials file over those of the other."""
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path(environ.get("HOME") or "/nonexistent") / ".aws"
    files = (
        (environ.get("AWS_CONFIG_FILE") or str(home / "config"), (f"profile {name}", name)),
        (environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials"), (name,)),
    )
    entries: dict[str, str] = {}
    there = False
    for path, sections in files:
        parsed = _parsed(Path(path).expanduser())
        for section in sections:
            if parsed.has_section(section):
                there = True
                entries |= dict(parsed.items(section))
                break
    if environ.get("AWS_PROFILE") and not there:
        raise PlaceError(
            "AWS_PROFILE names a profile that neither the shared config nor the credentials file "
            "has; name another, or unset it"
        )
    return entries


def _parsed(path: Path) -> configparser.RawConfigParser:
    """Parse a file; an error does not repeat what is in it."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_text())
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, configparser.Error):
        raise PlaceError(
            f"{path}: it is not a file of profiles that could be read; repair it, or put keys into "
            "the environment"
        ) from None
    return parser


def _checked(source: str, value: str) -> str:
    """Return a URL without path, name and password, which would have to be kept secret."""
    way = "give one as https://host or http://host:port"
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - it raises where it is none
    except ValueError:
        raise ConfigError(f"{source} is no URL of a server; {way}") from None
    if parts.username is not None or parts.password is not None or "@" in value:
        raise ConfigError(f"{source} has a name or a password in it, which would be seen; {way}")
    host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ConfigError(f"{source} is no URL of a server; {way}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(
            f"{source} has more than a server in it (the bucket is --cache-dir's); {way}"
        )
    return f"{parts.scheme}://{parts.netloc}"
