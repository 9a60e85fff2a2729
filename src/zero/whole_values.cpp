// SPDX-License-Identifier: Apache-2.0
#include "thinwire/zero/whole_values.h"

#include <fmt/format.h>

#include "core/require.h"
#include "core/require_view.h"
#include "zero/checks.h"

namespace thinwire::zero {

namespace {

// Rejects keys that are not states and have separate functions.
void require_key(std::string_view key) {
  require(key != "param" && key != "grad", "key", "a state of the rule", key);
}

}  // namespace

std::vector<float> WholeValues::parameter(std::string_view name) {
  return read(index_of(layout_, name), "param", {});
}

void WholeValues::require_gradients(std::string_view caller, View grads) const {
  const bool are_there = grads.empty()
                             ? window_.awaits_step()
                             : takes_arrays_ && window_.backwards() == 0;
  if (!are_there)
    refuse(
        fmt::format("{}: only between the last backward and step()", caller));
}

std::vector<float> WholeValues::gradient(std::string_view name, View grads) {
  const std::size_t index = index_of(layout_, name);
  if (!grads.empty()) require_view("grads", grads, layout_.size(), true, true);
  require_gradients("full_gradient", grads);
  std::vector<float> values = read(index, "grad", grads);
  window_.close();  // because reduced gradients cannot accumulate
  return values;
}

std::vector<float> WholeValues::state(std::string_view name,
                                      std::string_view key) {
  require_key(key);
  return read(index_of(layout_, name), key, {});
}

void WholeValues::set_parameter(std::string_view name,
                                std::span<const float> values) {
  write(index_for(layout_, name, values), "param", values);
}

void WholeValues::set_gradient(std::string_view name,
                               std::span<const float> values) {
  const std::size_t index = index_for(layout_, name, values);
  require_gradients("set_full_gradient", {});
  write(index, "grad", values);
  window_.close();
}

void WholeValues::set_state(std::string_view name, std::string_view key,
                            std::span<const float> values) {
  require_key(key);
  write(index_for(layout_, name, values), key, values);
}

}  // namespace thinwire::zero
