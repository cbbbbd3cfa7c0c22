"""A URL becomes a filesystem, and nothing secret becomes text."""

import pytest

from rollout_plugins import RolloutRecorder
from rollout_plugins.errors import MissingExtraError, SetupError
from rollout_plugins.remote.s3 import endpoint
from rollout_plugins.remote.url_places import is_url, place, without_secrets


@pytest.mark.parametrize("kind", ["arrow", "fsspec"])
def test_a_folder_of_this_machine_and_one_of_any_fsspec_filesystem_are_read_alike(tmp_path, kind):
    (tmp_path / "a file").write_bytes(b"here")
    for here in (place(tmp_path), place(tmp_path.as_uri()), place("memory://places/of mine")):
        here.fsspec.pipe_file(here.inside("a file").path, b"here")
        path = here.inside("a file").path
        if kind == "fsspec":
            assert here.fsspec.cat_file(path) == b"here"
        else:
            assert here.arrow.open_input_stream(path).readall() == b"here"


def test_a_place_says_its_url_and_opens_again_by_it(tmp_path):
    for url in ("s3://bucket/runs", "memory://runs/of mine", "hf://datasets/me/runs", tmp_path.as_uri()):
        assert place(url).inside("data/train").url == f"{url}/data/train"
        assert place(place(url).url) == place(url)


def test_a_slash_too_many_is_none():
    assert place("s3://bucket//runs//mine/").url == "s3://bucket/runs/mine"


def test_what_is_a_url_and_what_is_a_path():
    assert all(map(is_url, ["s3://b/x", "s3:/b/x", "hf://datasets/a/b", "simplecache::s3://b/x"]))
    assert not any(map(is_url, ["runs", "/runs", "C:/runs", "", None, 3]))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no bucket"),
        ("s3:bucket/runs", "has no slashes after the colon; give a URL, such as s3://bucket/runs"),
        ("nowhere://bucket/runs", "no filesystem is known for nowhere://; accepted: s3://, gs://"),
        ("ftp://me:hunter22@host/runs", "holds a password"),
        ("https://hunter22@host/runs", "holds a password, a key or options"),
        ("az://box/runs?sig=hunter22", "holds a password, a key or options"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_to_do(url, said):
    with pytest.raises(SetupError, match=said) as found:
        place(url, "mirror")
    assert "hunter22" not in str(found.value)
    assert str(found.value).startswith("mirror ")


@pytest.mark.parametrize(
    "address",
    ["http://me:hunter22@host:9000", "https://hunter22@host", "host:9000", "ftp://host", "http://host?k=hunter22"],
)
def test_an_endpoint_that_is_not_a_servers_address_is_refused_and_not_shown(monkeypatch, address):
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(SetupError, match="AWS_ENDPOINT_URL is not the address of a server; write it as") as found:
        RolloutRecorder(mirror="s3://bucket/runs")
    assert "hunter22" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[profile lab]\nendpoint_url = http://lab:9000\n", "http://lab:9000"),
        ("[default]\nendpoint_url = http://all:9000\n[profile lab]\nregion = eu-west-1\n", ""),
        (
            "[services all]\ns3 =\n  endpoint_url = http://s3:9000\n[profile lab]\nservices = all\nendpoint_url = http://x\n",
            "http://s3:9000",
        ),
        ("no configuration at all", ""),
    ],
)
def test_the_address_of_s3_may_be_in_the_profile_as_for_awss_own_tools(tmp_path, monkeypatch, text, address):
    (tmp_path / "config").write_text(text)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert endpoint() == address
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://said:9000")
    assert endpoint() == "http://said:9000"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert endpoint() == ""


def test_a_missing_extra_is_one_line_that_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"gcsfs is not installed: pip install 'rollout-plugins\[gcs\]'"):
        place("gs://bucket/runs")


def test_no_credentials_are_shown(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=c2VjcmV0IGtleQ==;Protocol=https")
    text = without_secrets("PUT http://me:pass@host/k?X-Amz-Signature=abcdef with wJalrXUtnFEMI failed")
    assert text == "PUT http://…@host/k?… with [AWS_SECRET_ACCESS_KEY] failed"
    assert without_secrets("key c2VjcmV0IGtleQ==") == "key [AZURE_STORAGE_CONNECTION_STRING]"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("Forbidden"), "check the credentials: AWS_PROFILE"),
        (OSError("AWS Error UNKNOWN (HTTP status 403)"), "check the credentials"),
        (OSError("AWS Error NO_SUCH_BUCKET: The specified bucket does not exist"), "create it"),
        (
            OSError("AWS Error UNKNOWN (HTTP status 400): ExpiredToken: The token has expired"),
            "renew them: AWS",
        ),
        (OSError("AWS Error SLOW_DOWN during PutObject operation"), "limits how often it is asked"),
        (OSError("AWS Error UNKNOWN (HTTP status 403): QuotaExceeded"), "make room there, or raise the quota"),
        (OSError("HTTP status 507: Storage backend has reached its minimum free drive threshold"), "make room there"),
        (OSError(28, "No space left on device"), "make room there"),
        (OSError("The server is busy. ErrorCode:ServerBusy"), "limits how often it is asked"),
        (OSError("AuthenticationFailed: Request date header too old"), "this machine's clock differs"),
        (OSError("invalid_grant: Token must be a short-lived token and in a reasonable timeframe"), "clock differs"),
        (
            OSError("Server failed to authenticate the request. ErrorCode:AuthenticationFailed"),
            "check the credentials",
        ),
        (OSError("AWS Error REQUEST_TIME_TOO_SKEWED (HTTP status 403)"), "this machine's clock differs"),
        (OSError("HTTP status 301: PermanentRedirect: use the specified endpoint"), "set AWS_REGION"),
        (OSError("key 'quota/503/network' in bucket 'credentials': AWS Error INTERNAL_FAILURE"), "key 'quota/503"),
        (OSError("curlCode: 7, Couldn't connect to server"), "check the network and AWS_ENDPOINT_URL"),
    ],
)
def test_an_error_of_the_service_says_what_to_do(error, said):
    assert said in place("s3://bucket/runs").why(error)


def test_a_region_that_could_not_be_asked_for_is_asked_for_again_after_an_error(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    found = iter([OSError("the network is away"), "eu-central-1"])

    def resolve(bucket):
        if isinstance(answer := next(found), OSError):
            raise answer
        return answer

    monkeypatch.setattr("pyarrow.fs.resolve_s3_region", resolve)
    there = place("s3://a-bucket-of-its-own/runs")
    assert there.arrow.region != "eu-central-1"
    there.why(OSError("AWS Error UNKNOWN (HTTP status 301): PermanentRedirect"))
    assert there.arrow.region == "eu-central-1"
