"""Settings: defaults, parsing, and one clear sentence for each mistake."""

import dataclasses
import logging

import pytest

from hetccl.config import SETTINGS, Config, Launch
from hetccl.errors import ConfigurationError


def test_defaults_and_the_table_agree():
    assert Config.read({}) == Config()
    assert [setting.field for setting in SETTINGS] == [field.name for field in dataclasses.fields(Config)]


def test_everything_set():
    config = Config.read(
        {
            "HETCCL_VENDOR": "mpi",
            "HETCCL_CLUSTER": "left",
            "HETCCL_COMBINE": "fill",
            "HETCCL_PATHS": " tcp, shm ,tcp",
            "HETCCL_INTERFACE": "eth0,10.0.0.0/8,fd00::/8",
            "HETCCL_HOST": "one",
            "HETCCL_TOPOLOGY": "/some/where.yaml",
            "HETCCL_CHUNKS": "8",
            "HETCCL_MPI_LIBRARY": "/lib/libmpi.so",
        }
    )
    assert config.paths == ("tcp", "shm")
    assert config.interfaces == ("eth0", "10.0.0.0/8", "fd00::/8")
    assert (config.vendor, config.cluster, config.combine, config.chunks) == ("mpi", "left", "fill", 8)


def test_empty_means_unset():
    assert Config.read({"HETCCL_COMBINE": "", "HETCCL_CHUNKS": " "}) == Config()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HETCCL_COMBINE", "bordr", "did you mean border"),
        ("HETCCL_CHUNKS", "-1", "whole number"),
        ("HETCCL_CHUNKS", "many", "whole number"),
        ("HETCCL_INTERFACE", "10.0.0.0/99", "no subnet"),
        ("HETCCL_INTERFACE", ",", "must name an interface"),
        ("HETCCL_VENDOR", "a b", "letters"),
        ("HETCCL_CLUSTER", "a/b", "letters"),
        ("HETCCL_PATHS", " , ", "at least one"),
    ],
)
def test_bad_values_name_setting_value_and_remedy(name, value, words):
    with pytest.raises(ConfigurationError, match=words) as raised:
        Config.read({name: value})
    assert name in str(raised.value)
    assert repr(value.strip()) in str(raised.value)


def test_unknown_names_warn_once(caplog):
    with caplog.at_level(logging.WARNING, "hetccl"):
        for _ in range(2):
            assert Config.read({"HETCCL_INTERFACES": "eth0", "PATH": "x"}) == Config()
    assert len(caplog.records) == 1
    assert "the nearest name is HETCCL_INTERFACE." in caplog.text


def test_launch():
    environ = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    assert Launch.read(environ) == Launch(1, 4, "h", 29500)
    assert Launch.read({}) is None
    with pytest.raises(ConfigurationError, match="torchrun"):
        Launch.read({**environ, "RANK": "x"})
