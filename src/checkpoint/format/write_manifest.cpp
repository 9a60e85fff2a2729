// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "core/json_text.h"
#include "core/require.h"
#include "optim/parameters_differ.h"
#include "thinwire/core/checksum.h"

namespace thinwire::checkpoint {

namespace {

// Writes NaN and infinities as texts, because JSON has only finite numbers.
JsonValue real_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::optional<double> real_from_json(const JsonValue& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// Adds `value` to the state under `name`. Returns false if it is not a scalar.
bool put_scalar(StateDict& state, const std::string& name,
                const std::string& kind, const JsonValue& value) {
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
  if (!value.is_string()) return false;
  state.put_text(name, value.get<std::string>());
  return true;
}

JsonValue parameter_to_json(const SavedParameter& parameter, bool has_group) {
  JsonValue json{{"name", parameter.name}, {"shape", parameter.shape}};
  if (has_group) json["group"] = parameter.group;
  json["dtype"] = safetensors_name(parameter.type);
  return json;
}

JsonValue array_to_json(const SavedArray& array) {
  JsonValue json{{"name", array.name},
                 {"axis", optim::to_string(array.axis)},
                 {"sharing", optim::to_string(array.sharing)},
                 {"dtype", safetensors_name({array.dtype})}};
  if (array.is_parameters) json["is_parameters"] = true;
  return json;
}

// {
//   "name": value,
//   "list": [
//     element,
//     element
//   ],
class Lines {
 public:
  void member(std::string_view name, const JsonValue& value) {
    if (value.is_string() && !is_utf8(value.get_ref<const std::string&>()))
      reject(fmt::format("{} must be UTF-8", name));
    begin(name);
    text_ += compact_json(value) + ",\n";
  }
  // Writes one element per line.
  template <class Items, class ToJson>
  void list(std::string_view name, const Items& items, const ToJson& to_json) {
    begin(name);
    text_ += '[';
    const char* separator = "\n    ";
    for (const auto& item : items) {
      text_ += separator + compact_json(to_json(item));
      separator = ",\n    ";
    }
    text_ += items.empty() ? "],\n" : "\n  ],\n";
  }

  std::string finish() {
    text_ += "  ";
    return text_ + manifest_end(text_);
  }

 private:
  void begin(std::string_view name) {
    text_ += fmt::format("  \"{}\": ", name);
  }
  std::string text_ = "{\n";
};

void write_identity(const Manifest& manifest, Lines& writer) {
  writer.member("format", kManifestFormat);
  writer.member("version", {kManifestMajor, kManifestMinor});
  writer.member("requires", JsonValue::array());
  writer.member("id", manifest.id);
  writer.member("run", manifest.run);
  writer.member("save_index", manifest.save_index);
  writer.member("step", manifest.step);
  writer.member("written", manifest.written);
  writer.member("library", manifest.library);
  if (!manifest.durable) writer.member("durable", false);
  if (!manifest.finite) writer.member("finite", false);
  writer.member("world", manifest.world);
  writer.member("optimizer", manifest.optimizer);
  writer.member("semantics", manifest.semantics);
  writer.member("phase", manifest.phase);
  writer.member("precision", manifest.precision);
  writer.member("zero_stage", manifest.zero_stage);
}

}  // namespace

std::int64_t steps_left_out(const Manifest& manifest) {
  const StateDict& scalars = manifest.scalars;
  const bool has_all = scalars.has_scalar(optim::kParametersDiffer) &&
                       scalars.integer(optim::kParametersDiffer) != 0;
  return has_all ? 0 : manifest.steps_behind;
}

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

JsonValue scalars_to_json(const StateDict& state) {
  JsonValue list = JsonValue::array();
  for (const auto& [name, value] : state.scalars()) {
    if (!problem_of_name(name).empty())
      reject(fmt::format("scalar {}: the name {}", brief_json(name),
                         problem_of_name(name)));
    JsonValue scalar{{"name", name}};
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      scalar["integer"] = *integer;
    } else if (const auto* real = std::get_if<double>(&value)) {
      scalar["real"] = real_to_json(*real);
    } else {
      const std::string& text = std::get<std::string>(value);
      if (!is_utf8(text))
        reject(fmt::format(
            "text '{}' must be UTF-8; use an array of bytes for other data",
            name));
      scalar["text"] = text;
    }
    list.push_back(std::move(scalar));
  }
  return list;
}

void add_scalar(StateDict& state, const JsonValue& scalar,
                const std::string& file, std::string_view member) {
  const auto fail = [&](std::string_view what) {
    corrupt(file, fmt::format("{}: {} {}", member, brief_json(scalar), what));
  };
  const JsonValue* const found = find_member(scalar, "name");
  if (found == nullptr || !found->is_string()) fail("has no name");
  const auto& name = found->get_ref<const std::string&>();
  if (!problem_of_name(name).empty()) fail("has no name");
  if (state.has_scalar(name)) fail("appears twice");
  for (const char* const kind : {"integer", "real", "text"})
    if (const JsonValue* const value = find_member(scalar, kind);
        value != nullptr && !put_scalar(state, name, kind, *value))
      fail("is not of its kind");
  if (!state.has_scalar(name)) fail("has no value");
}

JsonValue file_to_json(const SavedFile& file) {
  std::vector<std::string> hashes;
  for (const std::uint64_t hash : file.chunk_hashes)
    hashes.push_back(hash_text(hash));
  JsonValue json{{"name", file.name},
                 {"bytes", file.bytes},
                 {"xxh3", std::move(hashes)},
                 {"tensors", file.tensors}};
  if (!file.host.empty()) json["host"] = file.host;
  return json;
}

std::string write_manifest(const Manifest& manifest) {
  Lines writer;
  write_identity(manifest, writer);
  writer.list("parameters", manifest.parameters,
              [](const auto& p) { return parameter_to_json(p, true); });
  writer.member("aliases", manifest.aliases);
  writer.list("others", manifest.others,
              [](const auto& p) { return parameter_to_json(p, false); });
  writer.list("arrays", manifest.arrays, array_to_json);
  writer.list("files", manifest.files, file_to_json);
  writer.member("scalars", scalars_to_json(manifest.scalars));
  writer.list("scalars_of_ranks", manifest.scalars_of_ranks, scalars_to_json);
  writer.member("caller", scalars_to_json(manifest.caller));
  writer.member("extra", scalars_to_json(manifest.extra));
  writer.list("extra_of_ranks", manifest.extra_of_ranks, scalars_to_json);
  writer.member("config", manifest.config);
  writer.member("weights", {{"files", manifest.weight_files},
                            {"steps_behind", manifest.steps_behind}});
  std::string all = writer.finish();
  if (all.size() > kMostManifestBytes)
    reject(fmt::format("the manifest must have at most {} bytes, got {}",
                       kMostManifestBytes, all.size()));
  return all;
}

}  // namespace thinwire::checkpoint
