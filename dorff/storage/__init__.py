"""Where state, receipts, models and data sets lie: all of it is read and written through here."""
