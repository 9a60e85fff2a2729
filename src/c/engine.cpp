// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c/comm.h"
#include "c/guarded.h"

struct thinwire_engine {
  std::shared_ptr<thinwire::comm::Communicator> communicator;
  thinwire::ParameterLayout layout;
  thinwire::DType dtype;
  std::optional<thinwire::engine::Engine> engine{};
};

namespace {

using namespace thinwire;
using c::guarded;
using c::require_pointer;

ParameterLayout layout_of(const thinwire_parameter* parameters,
                          std::size_t count) {
  require(parameters != nullptr || count == 0, "parameters", "not NULL",
          "NULL");
  std::vector<ParameterSpec> specs(count);
  for (std::size_t k = 0; k < count; ++k) {
    const auto& [name, shape, dims] = parameters[k];
    require_pointer(name, fmt::format("parameters[{}].name", k).c_str());
    if (dims > 0)
      require_pointer(shape, fmt::format("parameters[{}].shape", k).c_str());
    specs[k] = {.name = name, .shape = {shape, shape + dims}};
  }
  return ParameterLayout::of(std::move(specs));
}

engine::Engine& engine_of(thinwire_engine* handle) {
  require_pointer(handle, "engine");
  return *handle->engine;
}

thinwire_report report_of(const engine::EngineReport& from) {
  return {.struct_size = sizeof(thinwire_report),
          .at_boundary = from.at_boundary ? 1 : 0,
          .applied = from.applied ? 1 : 0,
          .phase = optim::to_string(from.phase).data(),
          .steps = from.steps,
          .learning_rate = from.learning_rate,
          .grad_norm = from.grad_norm,
          .loss_scale = from.loss_scale,
          .bytes_sent = from.bytes_sent,
          .seconds = from.seconds,
          .waited_seconds = from.exchange_seconds};
}

}  // namespace

thinwire_status thinwire_engine_new(thinwire_comm* comm, const char* config,
                                    const thinwire_parameter* parameters,
                                    size_t num_parameters, void* params,
                                    void* grads, thinwire_engine** engine) {
  return guarded([&] {
    require_pointer(comm, "comm");
    require_pointer(config, "config");
    require_pointer(engine, "engine");
    const auto parsed = config::Config::from_json(config);
    require(parsed.checkpoint == config::CheckpointConfig{},
            "thinwire.checkpoint",
            "left out in C, where thinwire_engine_save() saves",
            "a section with settings");
    auto made = std::make_unique<thinwire_engine>(
        thinwire_engine{.communicator = comm->communicator,
                        .layout = layout_of(parameters, num_parameters),
                        .dtype = parsed.precision.dtype});
    const std::size_t size = made->layout.size();
    parsed.validate(made->communicator->size());
    if (size > 0) require_pointer(params, "params");
    const bool keeps =
        engine::keeps_gradients(parsed, made->communicator->size());
    require(size == 0 || keeps == (grads != nullptr), "grads",
            keeps ? "not NULL" : "NULL with this configuration",
            grads == nullptr ? "NULL" : "an array");
    made->engine.emplace(*made->communicator, made->layout, parsed,
                         View(params, size, made->dtype),
                         View(grads, keeps ? size : 0, made->dtype));
    *engine = made.release();
  });
}

void thinwire_engine_free(thinwire_engine* engine) { delete engine; }

thinwire_status thinwire_engine_loss_factor(const thinwire_engine* engine,
                                            double* factor) {
  return guarded([&] {
    require_pointer(engine, "engine");
    require_pointer(factor, "factor");
    *factor = engine->engine->loss_factor();
  });
}

thinwire_status thinwire_engine_begin_backward(thinwire_engine* engine) {
  return guarded([&] { engine_of(engine).begin_backward(); });
}

thinwire_status thinwire_engine_gradient_ready(thinwire_engine* engine,
                                               size_t index,
                                               const void* gradient) {
  return guarded([&] {
    auto& of = engine_of(engine);
    const auto known = engine->layout.parameters();
    require(index < known.size(), "index",
            fmt::format("in [0, {})", known.size()), index);
    if (gradient == nullptr)
      of.gradient_ready(index);
    else
      of.gradient_ready(index,
                        ConstView(gradient, known[index].size, engine->dtype));
  });
}

thinwire_status thinwire_engine_end_backward(thinwire_engine* engine) {
  return guarded([&] { engine_of(engine).end_backward(); });
}

thinwire_status thinwire_engine_cancel_backward(thinwire_engine* engine,
                                                const char* reason) {
  return guarded([&] {
    require_pointer(reason, "reason");
    engine_of(engine).cancel_backward(reason);
  });
}

thinwire_status thinwire_engine_step(thinwire_engine* engine,
                                     thinwire_report* report) {
  return guarded([&] {
    auto& of = engine_of(engine);
    if (report != nullptr)
      require(report->struct_size == sizeof *report, "report.struct_size",
              fmt::format("{}", sizeof *report), report->struct_size);
    const thinwire_report result = report_of(of.step());
    if (report != nullptr) *report = result;
  });
}

thinwire_status thinwire_engine_set_learning_rate(thinwire_engine* engine,
                                                  double learning_rate) {
  return guarded(
      [&] { engine_of(engine).learning_rates().set(learning_rate); });
}

thinwire_status thinwire_engine_mean(thinwire_engine* engine, double value,
                                     double* mean) {
  return guarded([&] {
    require_pointer(mean, "mean");
    *mean = engine_of(engine).mean(value);
  });
}

thinwire_status thinwire_engine_begin_evaluation(thinwire_engine* engine) {
  return guarded([&] { engine_of(engine).begin_evaluation(); });
}

thinwire_status thinwire_engine_end_evaluation(thinwire_engine* engine) {
  return guarded([&] { engine_of(engine).end_evaluation(); });
}

thinwire_status thinwire_engine_values(thinwire_engine* engine,
                                       const char* parameter, const char* key,
                                       float* values, size_t size) {
  return guarded([&] {
    auto& of = engine_of(engine);
    require_pointer(parameter, "parameter");
    const std::size_t elements = engine->layout.parameter(parameter).size;
    require(size == elements, "size", fmt::format("{}", elements), size);
    if (size > 0) require_pointer(values, "values");
    const std::vector<float> whole =
        key == nullptr ? of.whole_values().parameter(parameter)
                       : of.whole_values().state(parameter, key);
    std::ranges::copy(whole, values);
  });
}

thinwire_status thinwire_engine_save(thinwire_engine* engine,
                                     const char* root) {
  return guarded([&] {
    require_pointer(root, "root");
    engine_of(engine).save(root);
  });
}

thinwire_status thinwire_engine_resume(thinwire_engine* engine,
                                       const char* path, int64_t* step) {
  return guarded([&] {
    require_pointer(path, "path");
    const auto report = engine_of(engine).resume(path);
    if (step != nullptr) *step = report ? report->step : -1;
  });
}
