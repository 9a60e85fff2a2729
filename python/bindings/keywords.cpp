// SPDX-License-Identifier: Apache-2.0
#include "config/keywords.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
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
// An archive (fields.h) that returns values as Python objects.
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

void set_optimizer(Config& config, const std::string& type,
                   const std::string& keywords,
                   const std::vector<std::string>& others) {
  config::set_optimizer(config, type, read_json(keywords), others);
}

void set_groups(Config& config, const std::vector<std::string>& groups,
                const std::vector<nb::object>& masks) {
  std::vector<JsonValue> options;
  for (const std::string& group : groups) options.push_back(read_json(group));
  std::vector<std::vector<float>> values;
  for (const nb::object& mask : masks)
    values.push_back(mask.is_none() ? std::vector<float>{} : to_mask(mask));
  config::set_groups(config, options, values);
}

nb::typed<nb::dict, nb::str, nb::any> keywords(const Config& config) {
  nb::dict values;
  std::visit(
      [&](const auto& options) {
        config::keyword_fields(Values(values), config, options);
      },
      config.optimizer);
  return values;
}

}  // namespace

void bind_keywords(nb::class_<Config>& kind) {
  kind.def("set_optimizer", &set_optimizer, "type"_a, "keywords"_a = "{}",
           "others"_a = std::vector<std::string>())
      .def("set_groups", &set_groups, "groups"_a,
           "masks"_a = std::vector<nb::object>())
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
