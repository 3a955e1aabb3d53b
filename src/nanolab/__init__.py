"""The lab around nanoengine: drives it, serves it, measures it, records it and renders the manual."""
