// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/weights.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/format/fields.h"
#include "checkpoint/read/verified_file.h"
#include "core/json_text.h"
#include "core/require.h"

namespace thinwire::checkpoint {

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Returns the files that a Hugging Face index lists.
std::set<std::string> files_of_index(const std::string& text,
                                     const std::string& path) {
  constexpr JsonLimits kLimits{std::size_t{1} << 22, 16, std::size_t{1} << 22};
  std::set<std::string> names;
  const auto take = [&](const std::string& member, const JsonValue& value,
                        bool is_element) {
    if (member != "weight_map") return;
    if (is_element || !value.is_object())
      corrupt(path, "weight_map must be an object of file names");
    for (const auto& [tensor, name] : value.items()) {
      if (!name.is_string() ||
          !is_file_name(name.get_ref<const std::string&>()))
        corrupt(path, fmt::format("weight_map: {} of {} is not a file name",
                                  brief_json(name), brief_json(tensor)));
      names.insert(name.get<std::string>());
    }
  };
  try {
    read_json_members(text, kLimits, take);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorruptCheckpoint) throw;
    corrupt(path, error.what());
  }
  if (names.empty()) corrupt(path, "weight_map names no files");
  return names;
}

}  // namespace

Weights::Weights(FileSystem& files, const std::string& path) {
  const auto has = [&](std::string_view name) {
    return files.exists(fmt::format("{}/{}", path, name));
  };
  if (has(kManifestName))
    open_checkpoint(files, path, read_manifest(files, path));
  else if (has(kSingle) || has(kIndex))
    open_folder(files, path);
  else if (path.ends_with(".safetensors"))
    add(std::make_unique<VerifiedFile>(files, path));
  else
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: no weights found: it must be a .safetensors "
                            "file, or a directory with {}, {} or {}",
                            path, kManifestName, kSingle, kIndex));
}

Weights::Weights(FileSystem& files, const std::string& directory,
                 const Manifest& manifest) {
  open_checkpoint(files, directory, manifest);
}

void Weights::open_folder(FileSystem& files, const std::string& path) {
  const std::string single = fmt::format("{}/{}", path, kSingle);
  if (files.exists(single))
    return add(std::make_unique<VerifiedFile>(files, single));
  const std::string index = fmt::format("{}/{}", path, kIndex);
  for (const std::string& name :
       files_of_index(read_text(files, index, true, kMostManifestBytes), index))
    add(std::make_unique<VerifiedFile>(files, path + "/" + name));
}

void Weights::open_checkpoint(FileSystem& files, const std::string& directory,
                              const Manifest& manifest) {
  const std::set<std::string_view> names(manifest.weight_files.begin(),
                                         manifest.weight_files.end());
  for (const SavedFile& saved : manifest.files)
    if (names.contains(saved.name))
      add(std::make_unique<VerifiedFile>(files, directory, saved));
  for (const auto& [alias, name] : manifest.aliases) {
    const auto found = places_.find(name);
    if (found == places_.end())
      corrupt(directory, fmt::format("'{}' stands for '{}', which is in no "
                                     "file of weights",
                                     alias, name));
    places_.emplace(alias, found->second);
  }
}

void Weights::add(std::unique_ptr<VerifiedFile> file) {
  file->forget_chunk();
  for (const TensorEntry& tensor : file->header().tensors)
    if (!places_.emplace(tensor.name, Place{files_.size(), &tensor}).second)
      corrupt(file->path(),
              fmt::format("'{}' is in another file too", tensor.name));
  files_.push_back(std::move(file));
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const TensorEntry* Weights::find(std::string_view name) const noexcept {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

void Weights::read(std::string_view name, View to) {
  read(name, {0, to.size()}, to);
}

void Weights::read(std::string_view name, Range range, View to) {
  const auto found = places_.find(name);
  if (found == places_.end())
    reject(fmt::format("there is no weight '{}'", name));
  const auto [file, tensor] = found->second;
  const std::uint64_t bytes_each = size_of(tensor->type.dtype);
  const std::uint64_t elements = tensor->bytes / bytes_each;
  if (to.dtype() != tensor->type.dtype || to.size() != range.size ||
      range.offset > elements || range.size > elements - range.offset)
    reject(fmt::format("weight '{}' has {} {}; {} {} from {} on were requested",
                       name, elements, to_string(tensor->type.dtype), to.size(),
                       to_string(to.dtype()), range.offset));
  if (file != last_file_) forget_chunk();
  last_file_ = file;
  files_[file]->read(tensor->begin + range.offset * bytes_each,
                     {static_cast<std::byte*>(to.data()),
                      static_cast<std::size_t>(to.bytes())});
}

void Weights::forget_chunk() noexcept {
  if (!files_.empty()) files_[last_file_]->forget_chunk();
}

std::uint64_t Weights::bytes_read() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes_read();
  return bytes;
}

}  // namespace thinwire::checkpoint
