// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "communicator.h"
#include "core/require.h"
#include "optimizer.h"
#include "support/errors.h"
#include "support/state.h"
#include "thinwire/engine/leaders.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::python {
namespace {

using engine::Engine;
using Self = const EngineHandle;

void construct_engine(EngineHandle* self, const CommunicatorHandle& comm,
                      const ParameterLayout& layout,
                      const config::Config& config, nb::handle params,
                      nb::handle grads, nb::handle initial, nb::handle experts,
                      const nb::object& client) {
  config::Config settings = config;
  const std::shared_ptr<EngineParts> parts(
      new EngineParts{.comm = comm.get(),
                      .experts = take_experts(experts, settings),
                      .params = Array(params, "params"),
                      .grads = Array()});
  if (!grads.is_none()) parts->grads = Array(grads, "grads");
  optim::MakeRule rule;
  if (!client.is_none()) rule = make_client_rule(client);
  ConstArray masters;
  if (!initial.is_none()) masters = ConstArray(initial, "initial");
  {
    const WithoutGil released;
    parts->engine.emplace(*parts->comm, layout, settings, parts->params.view(),
                          parts->grads.view(), masters.view(), rule);
    parts->engine->log_phases(false);  // Python logs them, from its RunNotices.
    parts->engine->set_others([&others = parts->others] {
      return Engine::Others{.tensors = others.tensors,
                            .aliases = others.aliases};
    });
  }
  new (self) EngineHandle(parts);
}

// Forwards a method of the library without arguments, or with copies of plain
// values.
template <auto kMethod, class... Arguments>
auto forward(Self& self, Arguments... arguments) {
  return call(self, "engine", [&](EngineParts& parts) {
    return ((*parts.engine).*kMethod)(arguments...);
  });
}

template <auto kMethod>
auto look(Self& self) {
  return ((*self.look().engine).*kMethod)();
}

void gradient_ready(Self& self, std::size_t index, nb::handle gradient) {
  ConstArray array;
  if (!gradient.is_none()) array = ConstArray(gradient, "gradient");
  call(self, "gradient_ready", [&](EngineParts& parts) {
    parts.engine->gradient_ready(index, array.view());
  });
}

void set_learning_rate(Self& self, double learning_rate,
                       std::optional<std::size_t> group) {
  call(self, "set_learning_rate", [&](EngineParts& parts) {
    if (group)
      parts.engine->learning_rates().set(*group, learning_rate);
    else
      parts.engine->learning_rates().set(learning_rate);
  });
}

void set_weight_decay(Self& self, std::size_t group, double weight_decay) {
  call(self, "set_weight_decay", [&](EngineParts& parts) {
    parts.engine->learning_rates().groups().set_weight_decay(group,
                                                             weight_decay);
  });
}

void set_exp_avg_mask(Self& self, std::size_t group, nb::handle mask) {
  const ConstArray values(mask, "exp_avg_mask");
  call(self, "set_exp_avg_mask", [&](EngineParts& parts) {
    parts.engine->learning_rates().groups().set_exp_avg_mask(
        group, values.view().as<float>());
  });
}

double learning_rate(Self& self, std::size_t group) {
  return self.look().engine->optimizer().groups().learning_rate(group);
}

void set_model_parallel(Self& self, const CommunicatorHandle& comm,
                        const std::vector<std::size_t>& uncounted) {
  const std::shared_ptr<comm::Communicator> kept = comm.get();
  call(self, "set_model_parallel", [&](EngineParts& parts) {
    parts.engine->set_model_parallel(*kept, uncounted);
    parts.experts.push_back(kept);
  });
}

template <auto kField>
auto progress(Self& self) {
  return self.look().engine->optimizer().progress().*kField;
}

std::string phase(Self& self) {
  return std::string(to_string(progress<&optim::Progress::phase>(self)));
}

std::optional<std::int64_t> freeze_step(Self& self) {
  return freeze_step_of(self.look().engine->optimizer());
}

engine::EngineReport step(Self& self, nb::handle final_range) {
  return forward<&Engine::step>(self, final_range_of(final_range));
}

nb::object masters(Self& self) {
  return to_python(call(self, "masters", [](EngineParts& parts) {
    const ConstView values = parts.engine->masters();
    std::vector<float> copy(values.size());
    kernels::convert(values, copy);
    return copy;
  }));
}

template <auto kMethod, class... Names>
nb::object full(Self& self, const Names&... names) {
  return to_python(call(self, "full values", [&](EngineParts& parts) {
    return (parts.engine->whole_values().*kMethod)(names...);
  }));
}

nb::object full_gradient(Self& self, const std::string& name) {
  return to_python(call(self, "full values", [&](EngineParts& parts) {
    return parts.engine->whole_values().gradient(name);
  }));
}

std::span<const float> floats(const ConstArray& values) {
  if (values.view().dtype() != DType::kFloat32)
    reject("values must be float32");
  return values.view().as<float>();
}

template <auto kMethod, class... Names>
void set_full(Self& self, const Names&... names, nb::handle values) {
  const ConstArray array(values, "values");
  call(self, "full values", [&](EngineParts& parts) {
    (parts.engine->whole_values().*kMethod)(names..., floats(array));
  });
}

State state_dict(Self& self) {
  return to_python(forward<&Engine::state_dict>(self));
}

void load_state_dict(Self& self, nb::handle state) {
  const StateDict copy = to_state(state, "state");
  call(self, "load_state_dict",
       [&](EngineParts& parts) { parts.engine->load_state_dict(copy); });
}

// Shows the garbage collector that _core.Engine refers to the callable for
// others.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self))
    Py_VISIT(nb::inst_ptr<EngineHandle>(self)->others.ptr());
  return 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self))
    nb::inst_ptr<EngineHandle>(self)->others = nb::none();
  return 0;
}

PyType_Slot collector_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(&clear)},
    {0, nullptr}};

void bind_windows(nb::class_<EngineHandle>& kind) {
  kind.def("begin_backward", &forward<&Engine::begin_backward>)
      .def("gradient_ready", &gradient_ready, "index"_a,
           "gradient"_a = nb::none())
      .def("end_backward", &forward<&Engine::end_backward>)
      .def("cancel_backward", &forward<&Engine::cancel_backward, std::string>,
           "reason"_a)
      .def_prop_ro("is_boundary", &look<&Engine::is_boundary>)
      .def("set_accumulation_boundary",
           &forward<&Engine::set_accumulation_boundary, std::optional<bool>>,
           "boundary"_a.none())
      .def("step", &step, "final_range"_a = nb::none())
      .def("mean", &forward<&Engine::mean, double>, "value"_a)
      .def("begin_evaluation", &forward<&Engine::begin_evaluation>)
      .def("end_evaluation", &forward<&Engine::end_evaluation>);
}

void bind_values(nb::class_<EngineHandle>& kind) {
  using Values = zero::WholeValues;
  kind.def("set_learning_rate", &set_learning_rate, "learning_rate"_a,
           "group"_a = nb::none())
      .def("learning_rate", &learning_rate, "group"_a)
      .def("set_weight_decay", &set_weight_decay, "group"_a, "weight_decay"_a)
      .def("set_exp_avg_mask", &set_exp_avg_mask, "group"_a, "mask"_a)
      .def("set_model_parallel", &set_model_parallel, "comm"_a, "uncounted"_a)
      .def_prop_ro("loss_scale", &look<&Engine::loss_scale>)
      .def("set_loss_scale", &forward<&Engine::set_loss_scale, double>,
           "loss_scale"_a)
      .def_prop_ro("loss_factor", &look<&Engine::loss_factor>)
      .def_prop_ro("steps", &progress<&optim::Progress::steps>)
      .def_prop_ro("skipped_steps", &progress<&optim::Progress::skipped>)
      .def_prop_ro("phase", &phase)
      .def("lamb_coeffs", &progress<&optim::Progress::lamb_coeffs>)
      .def_prop_ro("freeze_step", &freeze_step)
      .def("masters", &masters)
      .def("read_masters", &forward<&Engine::read_masters, bool>,
           "only_written"_a = false)
      .def("full_parameter", &full<&Values::parameter, std::string>, "name"_a)
      .def("full_gradient", &full_gradient, "name"_a)
      .def("full_state", &full<&Values::state, std::string, std::string>,
           "name"_a, "key"_a)
      .def("set_full_parameter", &set_full<&Values::set_parameter, std::string>,
           "name"_a, "values"_a)
      .def("set_full_gradient", &set_full<&Values::set_gradient, std::string>,
           "name"_a, "values"_a)
      .def("set_full_state",
           &set_full<&Values::set_state, std::string, std::string>, "name"_a,
           "key"_a, "values"_a)
      .def("state_dict", &state_dict)
      .def("load_state_dict", &load_state_dict, "state"_a)
      .def("close", &EngineHandle::close);
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<EngineHandle> kind(module, "Engine", nb::is_weak_referenceable(),
                                nb::type_slots(collector_slots));
  kind.def("__init__", &construct_engine, "comm"_a, "layout"_a, "config"_a,
           "params"_a, "grads"_a = nb::none(), "initial"_a = nb::none(),
           "experts"_a = nb::list(), "client"_a = nb::none());
  bind_windows(kind);
  bind_values(kind);
  bind_engine_checkpoints(kind);
  module.def(
      "keeps_gradients",
      [](const config::Config& config, int world) {
        return engine::keeps_gradients(config, world);
      },
      "config"_a, "world"_a);
  module.def(
      "config_of_leaders",
      [](const config::Config& config, int world, int ranks_per_host) {
        return engine::config_of_leaders(config, world, ranks_per_host);
      },
      "config"_a, "world"_a, "ranks_per_host"_a);
}

}  // namespace thinwire::python
