"""Plug-ins that come with the server. Each enters by a door (`pytriton_lite.doors`), and nobody else imports it."""
