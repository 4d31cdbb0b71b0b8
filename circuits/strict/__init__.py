"""The care taken with every file: what comes from outside is read strictly and into typed records, what is written is whole or absent."""
