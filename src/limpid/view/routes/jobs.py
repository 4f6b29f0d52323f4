"""Work that takes long: how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from limpid.view.answers import answer, in_thread
from limpid.view.jobs import Jobs, WatchedJob
from limpid.view.live import Streams, with_heartbeats


@dataclass(frozen=True)
class JobAnswers:
    """Work that takes long: how far it is."""

    jobs: Jobs
    streams: Streams

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            Route("/api/jobs/{job}", in_thread(self.job)),
            Route("/api/jobs/{job}/events", self.job_events),
        ]

    def job(self, request: Request) -> Response:
        """GET api/jobs/J."""
        return answer(request, self.jobs.of(request.path_params["job"]))

    async def job_events(self, request: Request) -> Response:
        """GET api/jobs/J/events: server-sent events until the job has ended."""
        name = request.path_params["job"]

        def begin(_: Request) -> Response:
            self.jobs.of(name)  # which says that there is none
            return self.streams.send(with_heartbeats(WatchedJob(self.jobs, name).look))

        return await in_thread(begin)(request)
