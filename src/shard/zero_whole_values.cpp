// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "optim/checks.h"
#include "shard/zero_impl.h"

// Whole values, whoever owns them, and states elsewhere.
namespace thinwire::shard {

namespace {

std::size_t index_of(const ParameterLayout& layout, std::string_view name) {
  return static_cast<std::size_t>(&layout.parameter(name) -
                                  layout.parameters().data());
}

// What is not the rule's has functions of its own.
void require_key(std::string_view key) {
  require(key != "param" && key != "grad", "key", "a state of the rule", key);
}

void require_size(const ParameterLayout& layout, std::size_t index,
                  std::span<const float> values) {
  const Parameter& p = layout.parameters()[index];
  require(values.size() == p.size, "values",
          fmt::format("{} elements for '{}'", p.size, p.name), values.size());
}

}  // namespace

std::vector<float> ZeroOptimizer::full_parameter(std::string_view name) {
  return impl_->read(index_of(impl_->layout, name), "param", {});
}

std::vector<float> ZeroOptimizer::full_gradient(std::string_view name,
                                                View grads) {
  const std::size_t index = index_of(impl_->layout, name);
  if (!grads.empty())
    optim::require_view("grads", grads, impl_->layout.size(), true, true);
  const bool is_there = grads.empty()
                            ? impl_->has_collected && !impl_->in_backward
                            : reduces_early() && !impl_->has_collected;
  if (!is_there)
    refuse("full_gradient: only between the last backward and step()");
  impl_->require_same_array(grads);
  std::vector<float> values = impl_->read(index, "grad", grads);
  // It is reduced now: nothing may be added any more.
  impl_->is_complete = impl_->has_collected;
  impl_->early = grads;
  return values;
}

std::vector<float> ZeroOptimizer::full_state(std::string_view name,
                                             std::string_view key) {
  require_key(key);
  return impl_->read(index_of(impl_->layout, name), key, {});
}

void ZeroOptimizer::set_full_parameter(std::string_view name,
                                       std::span<const float> values) {
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  impl_->write(index, "param", values);
}

void ZeroOptimizer::set_full_gradient(std::string_view name,
                                      std::span<const float> values) {
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  if (!impl_->has_collected || impl_->in_backward)
    refuse("set_full_gradient: only between the last backward and step()");
  impl_->write(index, "grad", values);
  impl_->is_complete = true;
}

void ZeroOptimizer::set_full_state(std::string_view name, std::string_view key,
                                   std::span<const float> values) {
  require_key(key);
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  impl_->write(index, key, values);
}

void ZeroOptimizer::read_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  impl_->read_masters(params);
}

void ZeroOptimizer::offload_states() {
  impl_->offload_states();
  impl_->has_states = false;
}

void ZeroOptimizer::reload_states() {
  impl_->reload_states();
  impl_->has_states = true;
}

}  // namespace thinwire::shard
