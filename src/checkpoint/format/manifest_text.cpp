// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/manifest_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <variant>

#include "checkpoint/format/fields.h"
#include "core/require.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

// The shortest text that is read as the same bits; JSON has no other reals than
// finite ones.
Json real_to_json(double value) {
  if (std::isnan(value)) return Json::of(std::string_view("nan"));
  if (std::isinf(value))
    return Json::of(std::string_view(value > 0 ? "inf" : "-inf"));
  Json json = Json::of(value);
  json.text = fmt::format("{}", value);
  if (json.text.find_first_of(".e") == std::string::npos) json.text += ".0";
  return json;
}

std::optional<double> real_from_json(const Json& value) {
  if (value.is(Json::Kind::kNumber)) return value.number;
  if (!value.is(Json::Kind::kText)) return std::nullopt;
  if (value.text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value.text == "inf") return std::numeric_limits<double>::infinity();
  if (value.text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// Puts what `value` is under the name; false if it is nothing of the kind.
bool put_scalar(StateDict& state, const std::string& name,
                const std::string& kind, const Json& value) {
  if (kind == "integer") {
    const auto integer = integer_in(value);
    if (integer) state.put_integer(name, *integer);
    return integer.has_value();
  }
  if (kind == "real") {
    const auto real = real_from_json(value);
    if (real) state.put_real(name, *real);
    return real.has_value();
  }
  if (!value.is(Json::Kind::kText)) return false;
  state.put_text(name, value.text);
  return true;
}

}  // namespace

bool is_in_parts(const Manifest& manifest) noexcept {
  return !manifest.files.empty() && !manifest.files.front().host.empty();
}

std::string hash_text(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string manifest_end(std::string_view text) {
  return fmt::format("\"manifest_xxh3\": \"{}\"\n}}\n",
                     hash_text(checksum(text)));
}

Json scalars_to_json(const StateDict& state) {
  Json list;
  list.kind = Json::Kind::kArray;
  for (const auto& [name, value] : state.scalars()) {
    if (!problem_of_name(name).empty())
      reject(fmt::format("scalar {}: the name {}",
                         brief_json(Json::of(std::string_view(name))),
                         problem_of_name(name)));
    Json& scalar = list.elements.emplace_back(Json::object());
    scalar.add("name", Json::of(std::string_view(name)));
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      scalar.add("integer", Json::of(*integer));
    } else if (const auto* real = std::get_if<double>(&value)) {
      scalar.add("real", real_to_json(*real));
    } else {
      const std::string_view text = std::get<std::string>(value);
      if (!is_utf8(text))
        reject(fmt::format(
            "text '{}' must be UTF-8; use an array of bytes for other data",
            name));
      scalar.add("text", Json::of(text));
    }
  }
  return list;
}

void add_scalar(StateDict& state, const Json& scalar, const std::string& file,
                std::string_view member) {
  const auto fail = [&](std::string_view what) {
    corrupt(file, fmt::format("{}: {} {}", member, brief_json(scalar), what));
  };
  const Json* const name = scalar.find("name");
  if (name == nullptr || !name->is(Json::Kind::kText) ||
      !problem_of_name(name->text).empty())
    fail("has no name");
  if (state.has_scalar(name->text)) fail("appears twice");
  for (const char* const kind : {"integer", "real", "text"})
    if (const Json* const value = scalar.find(kind);
        value != nullptr && !put_scalar(state, name->text, kind, *value))
      fail("is not of its kind");
  if (!state.has_scalar(name->text)) fail("has no value");
}

}  // namespace thinwire::checkpoint
