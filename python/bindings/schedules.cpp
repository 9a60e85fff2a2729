// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "options.h"
#include "thinwire/config/learning_rate.h"

namespace thinwire::python {
namespace {

using config::Decay;
using config::Warmup;

template <class T>
nb::class_<T> bind_shape(nb::module_& module, const char* name) {
  nb::class_<T> kind(module, name);
  kind.def(nb::init<>())
      .def(
          "rate",
          [](const T& self, double base, std::int64_t applied_steps) {
            return config::LearningRateSchedule{self}.rate(base, applied_steps);
          },
          "base"_a, "applied_steps"_a);
  bind_copies(kind);
  return kind;
}

void bind_one_cycle(nb::module_& module) {
  using T = config::OneCycle;
  bind_shape<T>(module, "OneCycle")
      .def_rw("cycle_min_lr", &T::cycle_min_lr)
      .def_rw("cycle_max_lr", &T::cycle_max_lr)
      .def_rw("decay_lr_rate", &T::decay_lr_rate)
      .def_rw("cycle_first_step_size", &T::cycle_first_step_size)
      .def_rw("cycle_second_step_size", &T::cycle_second_step_size)
      .def_rw("cycle_first_stair_count", &T::cycle_first_stair_count)
      .def_rw("cycle_second_stair_count", &T::cycle_second_stair_count)
      .def_rw("decay_step_size", &T::decay_step_size);
}

void bind_range_test(nb::module_& module) {
  using T = config::LrRangeTest;
  bind_shape<T>(module, "LrRangeTest")
      .def_rw("lr_range_test_min_lr", &T::lr_range_test_min_lr)
      .def_rw("lr_range_test_step_size", &T::lr_range_test_step_size)
      .def_rw("lr_range_test_step_rate", &T::lr_range_test_step_rate)
      .def_rw("lr_range_test_staircase", &T::lr_range_test_staircase);
}

void bind_warmups(nb::module_& module) {
  using config::WarmupCosineLr;
  using config::WarmupDecayLr;
  using config::WarmupLr;
  bind_shape<WarmupLr>(module, "WarmupLr")
      .def_rw("warmup_min_lr", &WarmupLr::warmup_min_lr)
      .def_rw("warmup_max_lr", &WarmupLr::warmup_max_lr)
      .def_rw("warmup_num_steps", &WarmupLr::warmup_num_steps)
      .def_rw("warmup_type", &WarmupLr::warmup_type);
  bind_shape<WarmupDecayLr>(module, "WarmupDecayLr")
      .def_rw("total_num_steps", &WarmupDecayLr::total_num_steps)
      .def_rw("warmup_min_lr", &WarmupDecayLr::warmup_min_lr)
      .def_rw("warmup_max_lr", &WarmupDecayLr::warmup_max_lr)
      .def_rw("warmup_num_steps", &WarmupDecayLr::warmup_num_steps)
      .def_rw("warmup_type", &WarmupDecayLr::warmup_type);
  bind_shape<WarmupCosineLr>(module, "WarmupCosineLr")
      .def_rw("total_num_steps", &WarmupCosineLr::total_num_steps)
      .def_rw("warmup_min_ratio", &WarmupCosineLr::warmup_min_ratio)
      .def_rw("warmup_num_steps", &WarmupCosineLr::warmup_num_steps)
      .def_rw("cos_min_ratio", &WarmupCosineLr::cos_min_ratio)
      .def_rw("warmup_type", &WarmupCosineLr::warmup_type);
}

}  // namespace

void bind_schedules(nb::module_& module) {
  using T = config::WarmupAndDecay;
  nb::enum_<Warmup>(module, "Warmup")
      .value("linear", Warmup::kLinear)
      .value("log", Warmup::kLog);
  nb::enum_<Decay>(module, "Decay")
      .value("none", Decay::kNone)
      .value("linear", Decay::kLinear)
      .value("cosine", Decay::kCosine)
      .value("inverse_sqrt", Decay::kInverseSqrt);
  bind_shape<T>(module, "WarmupAndDecay")
      .def_rw("decay", &T::decay)
      .def_rw("warmup", &T::warmup)
      .def_rw("warmup_steps", &T::warmup_steps)
      .def_rw("total_steps", &T::total_steps)
      .def_rw("final_fraction", &T::final_fraction);
  bind_warmups(module);
  bind_one_cycle(module);
  bind_range_test(module);
}

}  // namespace thinwire::python
