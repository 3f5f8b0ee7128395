"""What every mapping of a job has in common."""

from pydantic import BaseModel, ConfigDict, model_validator

from dorff.spec import checks


class Part(BaseModel):
    """A mapping of the job: fixed once read, no key that it does not know, no value quietly converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        known = cls.model_fields
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                hint = checks.nearest(key, known)
                raise checks.Refusal(f"is not a known key; {hint}use one of: {', '.join(known)}", key=str(key))
        return value
