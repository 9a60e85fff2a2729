// SPDX-License-Identifier: Apache-2.0
// The part of the engine that reads and writes whole values, with any
// optimizer.
#include "core/require.h"
#include "engine/engine_impl.h"
#include "optim/saved_state.h"

namespace thinwire::engine {

void refuse_without_zero(std::string_view caller) {
  refuse(fmt::format("{}: only with ZeRO; here every rank has whole values",
                     caller));
}

void Engine::Impl::set_parameter(const Parameter& p,
                                 std::span<const float> values) {
  if (made.lean != nullptr)
    return made.lean->set_full_parameter(p.name, values);
  if (made.zero != nullptr)
    return made.zero->whole_values().set_parameter(p.name, values);
  const bool has_masters =
      made.mixed != nullptr && !made.mixed->masters().empty();
  Buffer all(layout.size(), DType::kFloat32);
  // Between syncs the parameters differ between ranks.
  if (optim::steps_behind(optimizer()) > 0)
    kernels::convert(optim::exchanged_params(optimizer(), params), all.view());
  else
    kernels::convert(has_masters ? made.mixed->masters() : ConstView(params),
                     all.view());
  kernels::convert(values, all.view().subview(p.offset, p.size));
  kernels::convert(all.view(), params);
  optimizer().set_masters(all.view());
}

namespace {

// Replaces each of `values`, which are `params` in fp32, by its master if the
// master rounds to the parameter.
void keep_masters(ConstView params, std::span<const float> masters,
                  std::span<float> values) {
  if (params.dtype() == DType::kFloat32) return;
  const std::size_t narrow = params.first_size();  // fp32 ones may follow
  Buffer rounded(narrow, params.dtype());
  std::vector<float> widened(narrow);
  kernels::convert(masters.first(narrow), rounded.view());
  kernels::convert(rounded.view(), widened);
  for (std::size_t i = 0; i < narrow; ++i)
    if (widened[i] == values[i]) values[i] = masters[i];
}

}  // namespace

void read_written(const OptimizerStack& stack, ConstView params) {
  optim::Optimizer& optimizer = *stack.optimizer;
  if (stack.lean != nullptr &&
      optimizer.progress().phase != optim::Phase::kExact)
    return;
  if (!params.is_joined() && params.dtype() == DType::kFloat32)
    return optimizer.set_masters(params);
  Buffer all(params.size(), DType::kFloat32);
  kernels::convert(params, all.view());
  const std::span<float> values = all.view().as<float>();
  const optim::State state = optimizer.state();
  for (const optim::StateArray& array : state.arrays) {
    if (!array.is_parameters || array.dtype != DType::kFloat32) continue;
    std::size_t at = 0;
    for (const Range& range : array.ranges) {
      std::vector<float> masters(range.size);
      array.read({at, range.size}, masters);
      at += range.size;
      keep_masters(params.subview(range.offset, range.size), masters,
                   values.subspan(range.offset, range.size));
    }
  }
  optimizer.set_masters(all.view());
}

EngineValues::EngineValues(Engine::Impl& engine)
    : WholeValues(engine.layout, *engine.window, /*takes_arrays=*/false),
      engine_(engine) {}

void EngineValues::require_gradients(std::string_view caller,
                                     View grads) const {
  if (engine_.made.zero == nullptr) refuse_without_zero(caller);
  WholeValues::require_gradients(caller, grads);
  if (!engine_.is_boundary())
    refuse(fmt::format("{}: only between a window's last backward and step()",
                       caller));
}

std::vector<float> EngineValues::read(std::size_t parameter,
                                      std::string_view what, View /*grads*/) {
  const Parameter& p = engine_.layout.parameters()[parameter];
  const OptimizerStack& made = engine_.made;
  if (what == "grad") {
    std::vector<float> gradient = made.zero->whole_values().gradient(
        p.name,
        engine_.has_gradient_array ? engine_.window_gradients() : View());
    engine_.marks.remember(engine_.params, engine_.own_gradients());
    return gradient;
  }
  if (what == "param") {
    if (made.zero != nullptr)
      return made.zero->whole_values().parameter(p.name);
    if (made.lean != nullptr) return made.lean->full_parameter(p.name);
    const bool has_masters =
        made.mixed != nullptr && !made.mixed->masters().empty();
    const ConstView from =
        has_masters ? made.mixed->masters() : ConstView(engine_.params);
    std::vector<float> values(p.size);
    kernels::convert(from.subview(p.offset, p.size), values);
    return values;
  }
  if (made.zero != nullptr)
    return made.zero->whole_values().state(p.name, what);
  auto values =
      optim::elements_of(made.optimizer->state(), what, {p.offset, p.size});
  if (!values)
    reject(fmt::format(
        "key must name an array of the state that every rank has whole, got "
        "'{}'",
        what));
  return *std::move(values);
}

void EngineValues::write(std::size_t parameter, std::string_view what,
                         std::span<const float> values) {
  const Parameter& p = engine_.layout.parameters()[parameter];
  engine_.marks.forget();  // this change is intended
  if (what == "param") return engine_.set_parameter(p, values);
  if (engine_.made.zero == nullptr) refuse_without_zero("set_full_state");
  zero::WholeValues& of_zero = engine_.made.zero->whole_values();
  if (what == "grad") return of_zero.set_gradient(p.name, values);
  of_zero.set_state(p.name, what, values);
}

}  // namespace thinwire::engine
