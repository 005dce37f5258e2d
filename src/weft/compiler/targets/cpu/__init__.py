"""The target that is this computer's processor."""
