// SPDX-License-Identifier: Apache-2.0
#include "optimizer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "communicator.h"
#include "core/require.h"
#include "engine/hierarchy.h"
#include "support/errors.h"
#include "support/state.h"
#include "thinwire/comm/agreement.h"

namespace thinwire::python {
namespace {

using Self = const OptimizerHandle;

void require(const char* name, ConstView view, DType dtype, std::size_t size) {
  thinwire::require(
      view.dtype() == dtype && view.size() == size, name,
      fmt::format("{} of {} elements", to_string(dtype), size),
      fmt::format("{} of {}", to_string(view.dtype()), view.size()));
}

// If construction fails on one rank, the others must not wait for it.
void construct_optimizer(OptimizerHandle* self, const CommunicatorHandle& comm,
                         const ParameterLayout& layout,
                         const config::Config& config, nb::handle params,
                         nb::handle initial, nb::handle experts) {
  const std::shared_ptr<OptimizerParts> parts(
      new OptimizerParts{.comm = comm.get(),
                         .layout = layout,
                         .config = config,
                         .params = Array(params, "params")});
  parts->experts = take_experts(experts, parts->config);
  ConstArray masters;
  if (!initial.is_none()) masters = ConstArray(initial, "initial");
  {
    const WithoutGil released;
    const View own = parts->params.view();
    const ConstView from = initial.is_none() ? own : masters.view();
    comm::require_everywhere(*parts->comm, [&] {
      parts->config.validate(parts->comm->size());
      require("params", own, parts->config.precision.dtype, layout.size());
      if (!initial.is_none())
        require("initial", from, DType::kFloat32, layout.size());
    });
    parts->grouped = engine::by_host(*parts->comm, parts->config);
    comm::Communicator& group =
        parts->grouped == nullptr ? *parts->comm : *parts->grouped;
    parts->stack =
        engine::make_optimizer(group, parts->layout, parts->config, own, from);
  }
  new (self) OptimizerHandle("optimizer", parts);
}

optim::StepReport step(Self& self, nb::handle params, nb::handle grads,
                       double loss_scale, nb::handle final_range) {
  const Array updated(params, "params");
  const Array gradients(grads, "grads");
  return call(self, "step", [&](OptimizerParts& parts) {
    optim::StepInput input{.params = updated.view(),
                           .grads = gradients.view(),
                           .loss_scale = loss_scale,
                           .final_range = final_range_of(final_range)};
    parts.model_parallel.join(input);
    return parts.optimizer().step(input);
  });
}

void set_model_parallel(Self& self, const CommunicatorHandle& comm,
                        const std::vector<std::size_t>& uncounted) {
  const std::shared_ptr<comm::Communicator> kept = comm.get();
  call(self, "set_model_parallel", [&](OptimizerParts& parts) {
    parts.model_parallel =
        engine::ModelParallel(*kept, parts.layout, parts.config, uncounted);
    parts.experts.push_back(kept);
  });
}

void synchronize(Self& self, nb::handle params) {
  const Array array(params, "params");
  call(self, "synchronize", [&](OptimizerParts& parts) {
    optim::synchronize(parts.optimizer(), array.view());
  });
}

nb::object masters(Self& self) {
  Buffer copy;
  bool has_masters = false;
  call(self, "masters", [&](OptimizerParts& parts) {
    if (parts.stack.mixed == nullptr) return;
    const ConstView values = parts.stack.mixed->masters();
    has_masters = values.data() != nullptr;
    copy = copy_of(values);
  });
  return has_masters ? to_python(std::move(copy)) : nb::none();
}

void read_masters(Self& self, nb::handle params) {
  const ConstArray array(params, "params");
  call(self, "read_masters", [&](OptimizerParts& parts) {
    parts.optimizer().set_masters(array.view());
  });
}

void read_written(Self& self, nb::handle params) {
  const ConstArray array(params, "params");
  call(self, "read_written", [&](OptimizerParts& parts) {
    engine::read_written(parts.stack, array.view());
  });
}

State state_dict(Self& self) {
  return to_python(call(self, "state_dict", [](OptimizerParts& parts) {
    return optim::copy_of(parts.optimizer().state());
  }));
}

nb::object state_elements(Self& self, const std::string& array,
                          std::size_t offset, std::size_t size) {
  auto values = call(self, "state_elements", [&](OptimizerParts& parts) {
    return optim::elements_of(parts.optimizer().state(), array, {offset, size});
  });
  return values ? to_python(*std::move(values)) : nb::none();
}

void load_state_dict(Self& self, nb::handle state) {
  const StateDict copy = to_state(state, "state");
  call(self, "load_state_dict", [&](OptimizerParts& parts) {
    parts.notes = parts.optimizer().load_state_dict(copy);
  });
}

void adopt(Self& self, nb::handle state) {
  StateDict copy = to_state(state, "state");
  call(self, "adopt", [&](OptimizerParts& parts) {
    parts.notes = parts.optimizer().adopt(std::move(copy))();
  });
}

void set_learning_rate(Self& self, std::size_t group, double learning_rate) {
  call(self, "set_learning_rate", [&](OptimizerParts& parts) {
    parts.optimizer().groups().set_learning_rate(group, learning_rate);
  });
}

void set_weight_decay(Self& self, std::size_t group, double weight_decay) {
  call(self, "set_weight_decay", [&](OptimizerParts& parts) {
    parts.optimizer().groups().set_weight_decay(group, weight_decay);
  });
}

void set_exp_avg_mask(Self& self, std::size_t group, nb::handle mask) {
  const ConstArray values(mask, "exp_avg_mask");
  call(self, "set_exp_avg_mask", [&](OptimizerParts& parts) {
    parts.optimizer().groups().set_exp_avg_mask(group,
                                                values.view().as<float>());
  });
}

std::vector<std::string> take_notes(Self& self) {
  return call(self, "take_notes", [](OptimizerParts& parts) {
    return std::exchange(parts.notes, {});
  });
}

double learning_rate(Self& self, std::size_t group) {
  return call(self, "learning_rate", [&](OptimizerParts& parts) {
    return parts.optimizer().groups().learning_rate(group);
  });
}

template <auto kField>
auto progress(Self& self) {
  return self.look().optimizer().progress().*kField;
}

std::string phase(Self& self) {
  return std::string(to_string(progress<&optim::Progress::phase>(self)));
}

std::int64_t steps_behind(Self& self) {
  return optim::steps_behind(self.look().optimizer());
}

// Returns 1 if ranks on one host do not reduce locally first.
int ranks_per_host(Self& self) {
  const auto& grouped = self.look().grouped;
  return grouped == nullptr ? 1 : grouped->hosts().ranks_per_host;
}

}  // namespace

void bind_optimizer(nb::module_& module) {
  using optim::Progress;
  nb::class_<OptimizerHandle>(module, "Optimizer", nb::is_weak_referenceable())
      .def("__init__", &construct_optimizer, "comm"_a, "layout"_a, "config"_a,
           "params"_a, "initial"_a = nb::none(), "experts"_a = nb::list())
      .def("step", &step, "params"_a, "grads"_a, "loss_scale"_a = 1.0,
           "final_range"_a = nb::none())
      .def("set_model_parallel", &set_model_parallel, "comm"_a, "uncounted"_a)
      .def("synchronize", &synchronize, "params"_a)
      .def_prop_ro("steps", &progress<&Progress::steps>)
      .def_prop_ro("skipped_steps", &progress<&Progress::skipped>)
      .def_prop_ro("phase", &phase)
      .def_prop_ro(
          "freeze_step",
          [](Self& self) { return freeze_step_of(self.look().optimizer()); })
      .def("lamb_coeffs", &progress<&Progress::lamb_coeffs>)
      .def_prop_ro("steps_behind", &steps_behind)
      .def_prop_ro("ranks_per_host", &ranks_per_host)
      .def("set_learning_rate", &set_learning_rate, "group"_a,
           "learning_rate"_a)
      .def("learning_rate", &learning_rate, "group"_a)
      .def("set_weight_decay", &set_weight_decay, "group"_a, "weight_decay"_a)
      .def("set_exp_avg_mask", &set_exp_avg_mask, "group"_a, "mask"_a)
      .def("take_notes", &take_notes)
      .def("masters", &masters)
      .def("read_masters", &read_masters, "params"_a)
      .def("read_written", &read_written, "params"_a)
      .def("state_dict", &state_dict)
      .def("state_elements", &state_elements, "array"_a, "offset"_a, "size"_a)
      .def("load_state_dict", &load_state_dict, "state"_a)
      .def("adopt", &adopt, "state"_a)
      .def("close", &OptimizerHandle::close);
}

}  // namespace thinwire::python
