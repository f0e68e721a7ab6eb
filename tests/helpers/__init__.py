"""What tests share: toys, fakes, oracles, corrupt trees; no test lives here."""
