// SPDX-License-Identifier: Apache-2.0
// Python's keywords become JSON, which the library checks.
#include "config/keywords.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "config/fields.h"
#include "support/arrays.h"

namespace thinwire::python {
namespace {

using config::Config;
using Keywords = nb::typed<nb::dict, nb::str, nb::any>;

std::string text_of(nb::handle value) { return nb::str(value).c_str(); }

// Integers above 64 bits become doubles. An object of another kind becomes a
// text of its repr(), which no field takes.
JsonValue number_of(nb::handle value) {
  std::int64_t integer = 0;
  if (nb::isinstance<nb::int_>(value) && nb::try_cast(value, integer))
    return integer;
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1.0 || PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  return HUGE_VAL;
}

JsonValue to_json(nb::handle value) {
  if (value.is_none()) return nullptr;
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value))
    return number_of(value);
  if (nb::isinstance<nb::dict>(value)) {
    JsonValue object = JsonValue::object();
    for (const auto& [name, member] : nb::borrow<nb::dict>(value))
      object[text_of(name)] = to_json(member);
    return object;
  }
  if (!nb::isinstance<nb::tuple>(value) && !nb::isinstance<nb::list>(value))
    return text_of(nb::repr(value));
  JsonValue array = JsonValue::array();
  for (const nb::handle element : value) array.push_back(to_json(element));
  return array;
}

// An archive (fields.h) that shows values as Python's.
class Values {
 public:
  explicit Values(nb::dict values) : values_(std::move(values)) {}

  template <class T>
  void field(const char* name, const T& value,
             const config::Limits& = {}) const {
    values_[name] = nb::cast(value);
  }
  void field(const char* name, const std::optional<std::int64_t>& value,
             const config::Limits& limits) const {
    const bool is_word = !limits.word.empty() && value == -1;
    values_[name] = is_word ? nb::cast(limits.word) : nb::cast(value);
  }
  template <class T>
  void pair(const char* name, const T& first, const T& second,
            const config::Limits&) const {
    values_[name] = nb::make_tuple(first, second);
  }
  template <class E>
  void choice(const char* name, const std::optional<E>& value,
              config::Choices<E> choices) const {
    values_[name] = nb::none();
    for (const auto& [word, meaning] : choices)
      if (value == meaning) values_[name] = nb::cast(word);
  }
  template <class E>
  void choice(const char* name, E value, config::Choices<E> choices) const {
    choice(name, std::optional(value), choices);
  }

 private:
  mutable nb::dict values_;
};

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

config::GroupKeywords to_group(const Keywords& given) {
  config::GroupKeywords group;
  for (const auto& [name, value] : given) {
    if (const std::string key = text_of(name); key == "exp_avg_mask")
      group.exp_avg_mask = to_mask(value);
    else
      group.options[key] = to_json(value);
  }
  return group;
}

void set_optimizer(Config& config, const std::string& type,
                   const Keywords& keywords,
                   const std::vector<std::string>& others) {
  try {
    config::set_optimizer(config, type, to_json(keywords), others);
  } catch (const config::WrongType& error) {
    throw nb::type_error(error.what());
  }
}

void set_groups(Config& config, const std::vector<Keywords>& given) {
  std::vector<config::GroupKeywords> groups;
  for (const Keywords& group : given) groups.push_back(to_group(group));
  try {
    config::set_groups(config, groups);
  } catch (const config::WrongType& error) {
    throw nb::type_error(error.what());
  }
}

Keywords keywords(const Config& config) {
  Keywords values;
  std::visit(
      [&](const auto& options) {
        config::keyword_fields(Values(values), config, options);
      },
      config.optimizer);
  return values;
}

}  // namespace

void bind_keywords(nb::class_<Config>& kind) {
  kind.def("set_optimizer", &set_optimizer, "type"_a, "keywords"_a = Keywords(),
           "others"_a = std::vector<std::string>())
      .def("set_groups", &set_groups, "groups"_a)
      .def("keywords", &keywords)
      .def("copy_optimizer",
           [](Config& self, const Config& other) {
             self.optimizer = other.optimizer;
             std::visit([](auto& options) { options.groups.clear(); },
                        self.optimizer);
           })
      .def("describe_groups", [](const Config& self) {
        return config::describe_groups(self.optimizer);
      });
}

}  // namespace thinwire::python
