"""The routes of OpenAI's API, for models that declare themselves (docs/openai.md): `app.openai_app` makes the application."""
