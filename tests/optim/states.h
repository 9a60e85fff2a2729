// SPDX-License-Identifier: Apache-2.0
// Saved states compared and taken apart.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <variant>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::test {

/// Returns a copy of the state of a rule for a whole layout.
inline StateDict saved(const optim::UpdateRule& rule) {
  optim::State state;
  rule.add_to(state, optim::Sharing::kSame, {{0, rule.layout().size()}});
  return optim::copy_of(state);
}

/// Success, or the first key that one of them lacks or whose value differs.
inline ::testing::AssertionResult same_state(
    const StateDict& a, const StateDict& b,
    const std::set<std::string>& but_for = {}) {
  const auto failure = [](const std::string& key) {
    return ::testing::AssertionFailure() << key << " differs";
  };
  for (const auto& [key, value] : a.arrays()) {
    if (but_for.count(key) != 0) continue;
    if (!b.has_array(key)) return failure(key);
    const ConstView other = b.array(key);
    if (value.dtype() != other.dtype() || value.size() != other.size() ||
        (value.bytes() != 0 &&
         std::memcmp(value.data(), other.data(), value.bytes()) != 0))
      return failure(key);
  }
  for (const auto& [key, value] : b.arrays())
    if (but_for.count(key) == 0 && !a.has_array(key)) return failure(key);
  for (const auto& [key, value] : a.scalars()) {
    if (but_for.count(key) != 0) continue;
    const auto other = b.scalars().find(key);
    if (other == b.scalars().end() || other->second != value)
      return failure(key);
  }
  for (const auto& [key, value] : b.scalars())
    if (but_for.count(key) == 0 && !a.has_scalar(key)) return failure(key);
  return ::testing::AssertionSuccess();
}

/// A copy that lacks `key`; "" lacks nothing.
inline StateDict without(const StateDict& state, const std::string& key) {
  StateDict copy;
  for (const auto& [name, value] : state.arrays())
    if (name != key) copy.put(name, value.view());
  for (const auto& [name, value] : state.scalars()) {
    if (name == key) continue;
    if (const auto* integer = std::get_if<std::int64_t>(&value))
      copy.put_integer(name, *integer);
    else if (const auto* real = std::get_if<double>(&value))
      copy.put_real(name, *real);
    else
      copy.put_text(name, std::get<std::string>(value));
  }
  return copy;
}

}  // namespace thinwire::test
