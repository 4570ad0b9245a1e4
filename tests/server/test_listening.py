"""TLS, Unix sockets, sockets of systemd, and its watchdog."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from stayfast.cli.listening import start_watchdog
from stayfast.http.server.listener import bind_unix
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig, TlsConfig
from stayfast.server.lifecycle import GatewayServer
from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.testing import RecordingSink
from stayfast.workers.supervisor import EXIT_PORT_IN_USE
from tests.ports import free_port
from tests.server.authority import Authority
from tests.server.fakes import CHAT, Client, FakeBackend, get, host, post

SETTINGS = """\
upstreams: {sim: {kind: simulated, script: steady}}
routes: {m: [sim]}
"""


async def connect(server: GatewayServer, tls: ssl.SSLContext) -> Client:
    return Client(*await asyncio.open_connection(*server.addresses()[0], ssl=tls))


def test_tls_listener_serves_and_reloads_its_certificate(tmp_path: Path) -> None:
    """New connections get the certificate that a reload found."""
    authority = Authority(tmp_path)

    async def main() -> None:
        config = ServerConfig(port=0, tls=authority.write_certificate())
        backend = FakeBackend(config)
        current, errors = ActiveSystem(backend), list[BaseException]()
        server = GatewayServer(current, host(RecordingSink(), errors))
        await server.listen()
        serials = []
        for change in (authority.write_certificate, (tmp_path / "chain.pem").unlink, lambda: None):
            client = await connect(server, authority.client())
            client.send(post(CHAT))
            assert (await client.answer())[0] == 200
            serials.append(client.writer.get_extra_info("peercert")["serialNumber"])
            client.reset()
            change()
            current.swap(backend)
        server.close()
        assert serials[0] != serials[1] == serials[2]  # the last reload failed: the certificate before it stays
        assert [type(error) for error in errors] == [FileNotFoundError] * 2

    uvloop.run(main())


def test_tls_listener_with_client_authorities_refuses_clients_without_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        tls = authority.write_certificate()
        config = ServerConfig(port=0, tls=TlsConfig(tls.cert_file, tls.key_file, authority.ca_file, "1.3"))
        server = GatewayServer(ActiveSystem(FakeBackend(config)), host(RecordingSink(), []))
        await server.listen()
        stranger = await connect(server, authority.client())
        stranger.send(get("/livez"))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await stranger.answer()
        known = authority.client()
        authority.ca.issue_cert("client@example.org").configure_cert(known)
        client = await connect(server, known)
        client.send(get("/livez"))
        assert (await client.answer())[0] == 200
        client.reset()
        server.close()

    uvloop.run(main())


def test_tls_listener_plain_client_is_disconnected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        server = GatewayServer(ActiveSystem(FakeBackend(ServerConfig(port=0, tls=authority.write_certificate()))),
                               host(RecordingSink(), []))
        await server.listen()
        reader, writer = await asyncio.open_connection(*server.addresses()[0])
        writer.write(get("/livez"))
        with suppress(ConnectionError):
            assert b"HTTP/1.1 200" not in await reader.read()
        writer.close()
        server.close()

    uvloop.run(main())


@pytest.mark.parametrize(("change", "problem"), [
    ("cert_file: nowhere.pem", "server.tls.cert_file: no such file"),
    ("cert_file: ca.pem, key_file: other.pem", "server.tls: the certificate and key cannot be used"),
    ("cert_file: ca.pem", "cannot be used: no certificate, or no key, in PEM: name the key's file as key_file"),
    ("cert_file: chain.pem, key_file: locked.pem", "cannot be used: the key is encrypted"),
])
def test_settings_unusable_certificate_is_an_error(change: str, problem: str, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Authority(tmp_path)
    key = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    (tmp_path / "locked.pem").write_bytes(locked)
    (tmp_path / "other.pem").write_bytes(trustme.CA().issue_cert("a").private_key_pem.bytes())
    text = f"{SETTINGS.replace('simulated, script: steady', 'embedded')}server: {{tls: {{{change}}}}}\n"
    with pytest.raises(SettingsError, match=problem):
        load_settings(SettingsText("s.yaml", text), {}, check_engine=lambda config: None)


def test_bind_unix_replaces_a_dead_socket_only(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with bind_unix(str(path), 0o600) as first:
        first.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(OSError, match="in use"):
            bind_unix(str(path), 0o600)
    with bind_unix(str(path), 0o660):  # nobody listens any more
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    path.unlink()
    path.write_text("data")
    with pytest.raises(OSError, match="in use"):
        bind_unix(str(path), 0o600)
    assert path.read_text() == "data"


@contextmanager
def process(folder: Path, command: list[str], variables: dict[str, str] | None = None, descriptors: tuple[int, ...] = ()
            ) -> Iterator[subprocess.Popen[bytes]]:
    """A gateway; ended and waited for at the end of the block."""
    with (folder / "out.log").open("ab") as out:
        running = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, pass_fds=descriptors,
                                   env={**os.environ, **(variables or {})})
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=20)


def get_by_socket(path: str, target: str) -> tuple[int, bytes]:
    """Status and body of a GET over a Unix socket, once somebody listens there."""
    ends_at = time.monotonic() + 20
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                assert time.monotonic() < ends_at, "nobody listens"
                time.sleep(0.05)
                continue
            client.sendall(get(target, "connection: close"))
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        return int(answer.split(b" ")[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_serve_unix_socket_is_served_and_removed(n_workers: int, tmp_path: Path) -> None:
    path = str(tmp_path / "gateway.sock")
    (tmp_path / "s.yaml").write_text(f"{SETTINGS}server: {{unix_socket: {path}, unix_socket_mode: '600'}}\n"
                                     f"workers: {n_workers}\n")
    command = [sys.executable, "-m", "stayfast", "serve", "--config", "s.yaml", "--port", str(free_port())]
    with process(tmp_path, command):
        status, body = get_by_socket(path, "/v1/models")
        assert (status, [model["id"] for model in json.loads(body)["data"]]) == (200, ["m"])
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert not Path(path).exists()


def test_serve_tls_is_served_by_workers(tmp_path: Path) -> None:
    """With what `curl` and the SDKs use: the authority's file."""
    tls, port = Authority(tmp_path).write_certificate(), free_port()
    (tmp_path / "s.yaml").write_text(f"{SETTINGS}server: {{tls: {{cert_file: {tls.cert_file}, key_file: {tls.key_file}}}}}\n"
                                     "workers: 2\n")
    command = [sys.executable, "-m", "stayfast", "serve", "--config", "s.yaml", "--port", str(port)]
    with process(tmp_path, command):
        ends_at = time.monotonic() + 40
        while f"https://127.0.0.1:{port}/v1" not in (tmp_path / "out.log").read_text():  # once all workers listen
            assert time.monotonic() < ends_at, (tmp_path / "out.log").read_text()
            time.sleep(0.05)
        ended = subprocess.run(["curl", "-s", "--cacert", "ca.pem", f"https://127.0.0.1:{port}/v1/models"], cwd=tmp_path,
                               capture_output=True, timeout=40, check=False)
        assert json.loads(ended.stdout)["data"][0]["id"] == "m", ended


@pytest.mark.parametrize("n_workers", [1, 2])
def test_serve_activated_socket_refuses_no_client_over_a_restart(n_workers: int, tmp_path: Path) -> None:
    """systemd holds the socket: what comes between two processes waits for the second one."""
    (tmp_path / "s.yaml").write_text(f"{SETTINGS}workers: {n_workers}\n")
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = held.getsockname()
        as_systemd = (f'exec 3<&{held.fileno()}; exec env LISTEN_PID=$$ LISTEN_FDS=1 "{sys.executable}" -m stayfast serve '
                      "--config s.yaml")
        for _ in range(2):
            with socket.create_connection(address, timeout=30) as early:  # before the process runs
                early.sendall(get("/livez", "connection: close"))
                with process(tmp_path, ["bash", "-c", as_systemd], descriptors=(held.fileno(),)):
                    assert early.recv(64).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("n_sockets", "kind", "problem"), [
    ("1", socket.SOCK_DGRAM, "is no stream socket"), ("2", socket.SOCK_STREAM, "socket 4 of systemd is not open"),
    ("two", socket.SOCK_STREAM, "LISTEN_FDS is no number")])
def test_serve_unusable_socket_of_systemd_is_a_message(n_sockets: str, kind: socket.SocketKind, problem: str, tmp_path: Path
                                                       ) -> None:
    (tmp_path / "s.yaml").write_text(SETTINGS)
    start = ("import os, sys; os.dup2(int(sys.argv[1]), 3); os.closerange(4, 64); "
             "os.environ['LISTEN_PID'] = str(os.getpid()); "
             "os.execv(sys.executable, [sys.executable, '-m', 'stayfast', 'serve', '--config', 's.yaml'])")
    with socket.socket(type=kind) as given:
        given.bind(("127.0.0.1", 0))
        done = subprocess.run([sys.executable, "-c", start, str(given.fileno())], cwd=tmp_path,
                              env=os.environ | {"LISTEN_FDS": n_sockets}, pass_fds=[given.fileno()],
                              capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == EXIT_PORT_IN_USE
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["nowhere/g.sock", "s.yaml/g.sock"])
def test_serve_unix_socket_without_a_folder_is_a_message(place: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{SETTINGS}server: {{unix_socket: {tmp_path / place}}}\n")
    done = subprocess.run([sys.executable, "-m", "stayfast", "serve", "--config", "s.yaml"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == EXIT_PORT_IN_USE
    assert f"cannot listen on {tmp_path / place}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_watchdog_reports_while_the_loop_runs(tmp_path: Path) -> None:
    """Twice in each interval; for another process it does nothing."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)

        async def count_beats(variables: dict[str, str], most: int, for_s: float) -> int:
            start_watchdog({"NOTIFY_SOCKET": path, **variables})
            loop, n_beats = asyncio.get_running_loop(), 0
            ends_at = loop.time() + for_s
            while n_beats < most and loop.time() < ends_at:
                with suppress(BlockingIOError):
                    n_beats += receiver.recv(64) == b"WATCHDOG=1"
                await asyncio.sleep(0.01)
            return n_beats

        assert uvloop.run(count_beats({"WATCHDOG_USEC": "200000"}, 3, 20.0)) == 3
        assert uvloop.run(count_beats({}, 1, 0.3)) == 0
        assert uvloop.run(count_beats({"WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}, 1, 0.3)) == 0
