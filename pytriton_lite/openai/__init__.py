"""The routes of OpenAI's API, for models that declare themselves (docs/openai.md): `app.OpenAiApp` is the application."""
