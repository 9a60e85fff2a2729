// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "support/arrays.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::python {
namespace {

using optim::AdamGroup;
using optim::MaskedGroup;

// Binds a vector of structs like def_rw, as a list of copies, since the vector
// owns the elements' memory.
template <class T, class Item>
void bind_list(nb::class_<T>& kind, const char* name,
               std::vector<Item> T::*member) {
  kind.def_prop_rw(
      name, [member](const T& self) { return self.*member; },
      [member](T& self, std::vector<Item> values) {
        self.*member = std::move(values);
      });
}

// Binds copy.copy and copy.deepcopy of a struct that holds no references.
template <class T>
void bind_copies(nb::class_<T>& kind) {
  kind.def("__copy__", [](const T& self) { return T(self); })
      .def(
          "__deepcopy__",
          [](const T& self, nb::handle /*memo*/) { return T(self); }, "memo"_a);
}

// Converts any array of numbers, or a list.
std::vector<float> to_mask(nb::handle values) {
  if (!is_array(values)) return nb::cast<std::vector<float>>(values);
  const ConstArray array(values, "exp_avg_mask", Bools::kAsBytes);
  const ConstView view = array.view();
  if (view.dtype() == DType::kUInt8) {
    const auto bytes = view.as<std::uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  if (view.dtype() == DType::kFloat32) {
    const auto floats = view.as<float>();
    return {floats.begin(), floats.end()};
  }
  throw nb::type_error(
      (std::string("exp_avg_mask must be of float32, uint8 or bool, got ") +
       to_string(view.dtype()))
          .c_str());
}

void bind_groups(nb::module_& module) {
  nb::class_<AdamGroup> adam(module, "AdamGroup");
  adam.def(nb::init<>())
      .def_rw("learning_rate", &AdamGroup::learning_rate)
      .def_rw("beta1", &AdamGroup::beta1)
      .def_rw("beta2", &AdamGroup::beta2)
      .def_rw("epsilon", &AdamGroup::epsilon)
      .def_rw("weight_decay", &AdamGroup::weight_decay);
  nb::class_<optim::LambGroup, AdamGroup>(module, "LambGroup")
      .def(nb::init<>())
      .def_rw("max_coeff", &optim::LambGroup::max_coeff)
      .def_rw("min_coeff", &optim::LambGroup::min_coeff);
  nb::class_<MaskedGroup, AdamGroup>(module, "MaskedGroup")
      .def(nb::init<>())
      .def_prop_rw(
          "exp_avg_mask",
          [](const MaskedGroup& self) { return self.exp_avg_mask; },
          [](MaskedGroup& self, nb::handle values) {
            self.exp_avg_mask = to_mask(values);
          });
  nb::class_<optim::OnebitAdamGroup, MaskedGroup>(module, "OnebitAdamGroup")
      .def(nb::init<>())
      .def_rw("non_freeze", &optim::OnebitAdamGroup::non_freeze);
  nb::class_<optim::OnebitLambGroup, MaskedGroup>(module, "OnebitLambGroup")
      .def(nb::init<>())
      .def_rw("max_coeff", &optim::OnebitLambGroup::max_coeff)
      .def_rw("min_coeff", &optim::OnebitLambGroup::min_coeff);
}

// Binds the fields that all optimizers have.
template <class T>
nb::class_<T> bind_adam(nb::module_& module, const char* name) {
  nb::class_<T> kind(module, name);
  kind.def(nb::init<>())
      .def_rw("learning_rate", &T::learning_rate)
      .def_rw("beta1", &T::beta1)
      .def_rw("beta2", &T::beta2)
      .def_rw("epsilon", &T::epsilon)
      .def_rw("weight_decay", &T::weight_decay)
      .def_rw("bias_correction", &T::bias_correction)
      .def_rw("epsilon_inside_sqrt", &T::epsilon_inside_sqrt);
  bind_list(kind, "groups", &T::groups);
  bind_copies(kind);
  return kind;
}

// Binds a field of a part of the options; Python's options are flat.
template <class T, class Part, class Value>
void bind_part(nb::class_<T>& kind, const char* name, Part T::*part,
               Value Part::*field) {
  kind.def_prop_rw(
      name, [=](const T& self) -> const Value& { return self.*part.*field; },
      [=](T& self, Value value) { self.*part.*field = std::move(value); });
}

// `residuals` says what an unset residual_dtype means.
template <class T>
nb::class_<T> bind_low_bit(nb::module_& module, const char* name,
                           DType residuals = DType::kFloat32) {
  using optim::CompressionOptions;
  nb::class_<T> kind = bind_adam<T>(module, name);
  bind_part(kind, "denom_floor", &T::compression,
            &CompressionOptions::denom_floor);
  kind.def_prop_rw(
      "residual_dtype",
      [residuals](const T& self) {
        return self.compression.residual_dtype.value_or(residuals);
      },
      [](T& self, DType dtype) { self.compression.residual_dtype = dtype; });
  return kind;
}

template <class T>
void bind_freeze(nb::class_<T>& kind) {
  using optim::FreezeOptions;
  const auto bind = [&kind](const char* name, auto field) {
    bind_part(kind, name, &T::freeze, field);
  };
  bind("freeze_step", &FreezeOptions::step);
  bind("lr_warmup_steps", &FreezeOptions::lr_warmup_steps);
  bind("total_steps", &FreezeOptions::total_steps);
  bind("min_freeze_step", &FreezeOptions::min_step);
  bind("max_freeze_step", &FreezeOptions::max_step);
  bind("freeze_ratio", &FreezeOptions::ratio);
  bind("warmup_bits", &FreezeOptions::warmup_bits);
}

void bind_zero_one_adam(nb::module_& module) {
  using T = optim::ZeroOneAdamOptions;
  bind_low_bit<T>(module, "ZeroOneAdamOptions")
      .def_rw("total_steps", &T::total_steps)
      .def_rw("var_freeze_step", &T::var_freeze_step)
      .def_rw("var_update_scaler", &T::var_update_scaler)
      .def_rw("local_step_scaler", &T::local_step_scaler)
      .def_rw("local_step_clipper", &T::local_step_clipper)
      .def_rw("warmup_bits", &T::warmup_bits);
}

}  // namespace

// Leaves out `exchange`, for which Config has fields of its own.
void bind_options(nb::module_& module) {
  using optim::LambOptions;
  using optim::OnebitAdamOptions;
  using optim::OnebitLambOptions;
  module.attr("AUTO_FREEZE") = optim::kAutoFreeze;
  bind_groups(module);
  bind_adam<optim::AdamOptions>(module, "AdamOptions")
      .def_rw("decoupled_decay", &optim::AdamOptions::decoupled_decay)
      .def_rw("state_dtype", &optim::AdamOptions::state_dtype);
  bind_adam<LambOptions>(module, "LambOptions")
      .def_rw("max_coeff", &LambOptions::max_coeff)
      .def_rw("min_coeff", &LambOptions::min_coeff);
  auto onebit_adam =
      bind_low_bit<OnebitAdamOptions>(module, "OnebitAdamOptions");
  bind_freeze(onebit_adam);
  auto onebit_lamb =
      bind_low_bit<OnebitLambOptions>(module, "OnebitLambOptions");
  bind_freeze(onebit_lamb);
  onebit_lamb.def_rw("max_coeff", &OnebitLambOptions::max_coeff)
      .def_rw("min_coeff", &OnebitLambOptions::min_coeff)
      .def_rw("coeff_beta", &OnebitLambOptions::coeff_beta)
      .def_rw("factor_max", &OnebitLambOptions::factor_max)
      .def_rw("factor_min", &OnebitLambOptions::factor_min)
      .def_rw("factor_threshold", &OnebitLambOptions::factor_threshold);
  bind_zero_one_adam(module);
  using lean::LeanOnebitAdamOptions;
  auto lean = bind_low_bit<LeanOnebitAdamOptions>(
      module, "LeanOnebitAdamOptions", DType::kBFloat16);
  bind_freeze(lean);
  lean.def_rw("denominator_bits", &LeanOnebitAdamOptions::denominator_bits);
}

}  // namespace thinwire::python
