"""The boundary to the driver. Only files in this folder import asyncio, asyncpg or trio-asyncio."""
