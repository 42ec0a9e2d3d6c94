"""The judge: replay a schedule, action by action. Imports nothing but the ground floor."""
