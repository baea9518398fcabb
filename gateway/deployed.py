"""The settings in force, for whoever asks now and then: those of the current deployment."""

from __future__ import annotations

import structlog

from runtime.deploy import reload
from runtime.deploy.reload import Pointer, Told
from runtime.deployments import Current, Deployments, NoDeployment
from runtime.settings import ConfigError, Settings

log = structlog.get_logger()


class Deployed:
    """Begins with what the process was started with; looks again at each call."""

    def __init__(self, started_with: Settings, number: int = 0) -> None:
        """`number` is that of the deployment, if it is known."""
        self._settings = started_with
        self._number = number
        self._seen: Current | None = None
        self._pointer = Pointer(Deployments(started_with.state_dir))

    def __call__(self) -> Settings:
        """Reads a small file; more only after a deployment. What can't be read changes nothing."""
        try:
            current = self._pointer.read()
            if current is not None and current != self._seen:
                self._seen = current
                old = self._settings
                self._settings = reload.load(old.state_dir, current.number, dev=old.dev)
                self._number = current.number
        except (NoDeployment, ConfigError, OSError) as fault:
            log.warning("deployment_unreadable", reason=str(fault))
        return self._settings

    def told(self) -> Told:
        """For a process that is started now: what it may start with if it can't read it itself."""
        settings = self()
        return Told(settings.text, settings.origin, self._number)
