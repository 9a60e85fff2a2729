// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_text.h"
#include "core/json.h"
#include "core/require.h"

namespace thinwire::checkpoint {

namespace {

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
