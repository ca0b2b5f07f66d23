from tests.warm.conftest import make_set as make_set
