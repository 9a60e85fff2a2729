// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "core/json.h"
#include "core/require.h"
#include "optim/parameters_differ.h"
#include "thinwire/core/checksum.h"

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

Json text(std::string_view value) { return Json::of(value); }

Json list_of_texts(const std::vector<std::string>& texts) {
  return list_of(texts, [](const std::string& one) { return text(one); });
}

Json pairs_to_json(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  return list_of(pairs, [](const auto& pair) {
    return list_of_texts({pair.first, pair.second});
  });
}

Json parameter_to_json(const SavedParameter& parameter, bool has_group) {
  Json json = Json::object();
  json.add("name", text(parameter.name));
  json.add("shape", to_json(parameter.shape));
  if (has_group)
    json.add("group", Json::of(static_cast<std::int64_t>(parameter.group)));
  json.add("dtype", text(safetensors_name(parameter.type)));
  return json;
}

Json array_to_json(const SavedArray& array) {
  Json json = Json::object();
  json.add("name", text(array.name));
  json.add("axis", text(optim::to_string(array.axis)));
  json.add("sharing", text(optim::to_string(array.sharing)));
  json.add("dtype", text(safetensors_name({array.dtype})));
  if (array.is_parameters) json.add("is_parameters", Json::of(true));
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
  void member(std::string_view name, const Json& value) {
    begin(name);
    text_ += compact_json(value) + ",\n";
  }
  void member(std::string_view name, std::string_view value) {
    if (!is_utf8(value)) reject(fmt::format("{} must be UTF-8", name));
    member(name, Json::of(value));
  }
  void member(std::string_view name, std::int64_t value) {
    member(name, Json::of(value));
  }
  // An element in each line.
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
  const std::vector<std::size_t> version{kManifestMajor, kManifestMinor};
  writer.member("version", to_json(version));
  writer.member("requires", list_of_texts({}));
  writer.member("id", manifest.id);
  writer.member("run", manifest.run);
  writer.member("save_index", manifest.save_index);
  writer.member("step", manifest.step);
  writer.member("written", manifest.written);
  writer.member("library", manifest.library);
  if (!manifest.durable) writer.member("durable", Json::of(false));
  if (!manifest.finite) writer.member("finite", Json::of(false));
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

Json file_to_json(const SavedFile& file) {
  Json json = Json::object();
  json.add("name", text(file.name));
  json.add("bytes", Json::of(static_cast<std::int64_t>(file.bytes)));
  json.add("xxh3", list_of(file.chunk_hashes, [](std::uint64_t hash) {
             return text(hash_text(hash));
           }));
  json.add("tensors", pairs_to_json(file.tensors));
  if (!file.host.empty()) json.add("host", text(file.host));
  return json;
}

std::string write_manifest(const Manifest& manifest) {
  Lines writer;
  write_identity(manifest, writer);
  writer.list("parameters", manifest.parameters,
              [](const auto& p) { return parameter_to_json(p, true); });
  writer.member("aliases", pairs_to_json(manifest.aliases));
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
  Json weights = Json::object();
  weights.add("files", list_of_texts(manifest.weight_files));
  weights.add("steps_behind", Json::of(manifest.steps_behind));
  writer.member("weights", weights);
  std::string all = writer.finish();
  if (all.size() > kMostManifestBytes)
    reject(fmt::format("the manifest must have at most {} bytes, got {}",
                       kMostManifestBytes, all.size()));
  return all;
}

}  // namespace thinwire::checkpoint
