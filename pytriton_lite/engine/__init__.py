"""Models, instances, dispatch, statistics. asyncio lives here; protocols do not."""
