"""An answer as something to paste: vLLM's flags, a compose file, a Kubernetes deployment."""

from __future__ import annotations

import re

from kvplan.flags import serve_flags
from kvplan.metrics.summary import effective_settings
from kvplan.planning.search_space import Candidate


def flags(candidate: Candidate) -> str:
    """``vllm serve MODEL`` with every setting that the simulation assumed, defaults filled in."""
    return serve_flags(effective_settings(candidate.deployment))


def _arguments(candidate: Candidate) -> list[str]:
    """The flags as a container's arguments: the image begins with ``vllm serve``."""
    words = flags(candidate).replace("\\\n", " ").split()[3:]
    return ["MODEL", *words]


def _image(candidate: Candidate) -> str:
    version = candidate.deployment.memory.version
    return f"vllm/vllm-openai:v{version}" + (".0" if re.fullmatch(r"\d+\.\d+", version) else "")


def compose(candidate: Candidate, replicas: int) -> str:
    """A compose file: every replica a container of its own GPUs. Put a load balancer in front."""
    lines = [
        "services:",
        "  vllm:",
        f"    image: {_image(candidate)}",
        f"    command: [{', '.join(_quoted(word) for word in _arguments(candidate))}]",
        "    ipc: host",
        "    deploy:",
        f"      replicas: {replicas}",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - {{driver: nvidia, count: {candidate.gpus}, capabilities: [gpu]}}",
    ]
    return "\n".join(lines) + "\n"


def kubernetes(candidate: Candidate, replicas: int) -> str:
    """A Deployment and its Service."""
    lines = [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata: {name: vllm, labels: {app: vllm}}",
        "spec:",
        f"  replicas: {replicas}",
        "  selector: {matchLabels: {app: vllm}}",
        "  template:",
        "    metadata: {labels: {app: vllm}}",
        "    spec:",
        "      containers:",
        "        - name: vllm",
        f"          image: {_image(candidate)}",
        f"          args: [{', '.join(_quoted(word) for word in _arguments(candidate))}]",
        "          ports: [{containerPort: 8000}]",
        f"          resources: {{limits: {{nvidia.com/gpu: {candidate.gpus}}}}}",
        "          volumeMounts: [{name: shm, mountPath: /dev/shm}]",
        "      volumes: [{name: shm, emptyDir: {medium: Memory}}]",
        "---",
        "apiVersion: v1",
        "kind: Service",
        "metadata: {name: vllm}",
        "spec: {selector: {app: vllm}, ports: [{port: 8000}]}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    return f'"{word}"'
