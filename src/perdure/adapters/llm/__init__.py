"""Language models for a memory: any OpenAI-compatible endpoint over HTTP, or a small one in this process."""

from perdure.adapters.llm.chat import OpenAIChat
from perdure.adapters.llm.embeddings import OpenAIEmbedder
from perdure.adapters.llm.local import LocalChat, bundled_model

__all__ = ["LocalChat", "OpenAIChat", "OpenAIEmbedder", "bundled_model"]
