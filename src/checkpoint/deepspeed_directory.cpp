// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/deepspeed_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "checkpoint/read/verified_file.h"
#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

constexpr std::string_view kScript =
    "in a clone of Thinwire run python "
    "examples/python/states_from_deepspeed.py";
constexpr std::string_view kLoad =
    "then load OUT, in Python with thinwire.load(OUT, ...)";
constexpr std::string_view kModel = "model_states.pt";
constexpr std::uint64_t kMostTagBytes = 4096;

bool is_directory(FileSystem& files, const std::string& path) {
  return files.exists(path) &&
         files.stat(path).kind == FileInfo::Kind::kDirectory;
}

// Returns the commands that convert a checkpoint, or an empty text if DeepSpeed
// did not write it.
std::string conversion_of(FileSystem& files, const std::string& directory) {
  std::string model;
  bool has_shards = false;
  bool is_stage_3 = false;
  for (const std::string& name : files.list(directory)) {
    has_shards = has_shards || name.ends_with("_optim_states.pt");
    if (!name.ends_with(kModel)) continue;
    if (name.starts_with("mp_rank_")) model = model.empty() ? name : model;
    is_stage_3 = is_stage_3 || name.starts_with("zero_pp_rank_");
  }
  if (model.empty() && !has_shards && !is_stage_3) return {};
  if (is_stage_3)
    return "states of ZeRO stage 3 cannot be converted; its zero_to_fp32.py "
           "writes the weights, which load with what = kWeights (Python: "
           "weights_only=True)";
  if (has_shards)
    return fmt::format(
        "python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state "
        "--input_folder {} --output_folder IN; {} IN OUT; {}",
        directory, kScript, kLoad);
  if (is_directory(files, directory + "/zero"))
    return fmt::format("{} {} OUT; {}", kScript, directory, kLoad);
  return fmt::format(
      "{} {}/{} OUT, for a 1-bit optimizer with --freeze-step N, its "
      "freeze_step; {}",
      kScript, directory, model, kLoad);
}

// Returns the tags in a directory of checkpoints, beginning with the tag in
// `latest`.
std::vector<std::string> tags_in(FileSystem& files, const std::string& root) {
  std::vector<std::string> tags = files.list(root);
  const std::string latest = root + "/latest";
  if (!std::ranges::binary_search(tags, "latest")) return tags;
  std::string tag = read_text(files, latest, true, kMostTagBytes);
  while (tag.ends_with('\n') || tag.ends_with('\r')) tag.pop_back();
  const auto found = std::ranges::find(tags, tag);
  if (found != tags.end()) std::rotate(tags.begin(), found, found + 1);
  return tags;
}

// Returns an empty text if the directory cannot be read.
std::string conversion_in(FileSystem& files, const std::string& path) {
  try {
    std::string how = conversion_of(files, path);
    if (!how.empty()) return how;
    for (const std::string& tag : tags_in(files, path))
      if (const std::string at = path + "/" + tag; is_directory(files, at))
        if (how = conversion_of(files, at); !how.empty()) return how;
  } catch (const Error&) {
  }
  return {};
}

}  // namespace

void refuse_deepspeed(FileSystem& files, const std::string& path) {
  const std::string how = conversion_in(files, path);
  if (!how.empty())
    reject(fmt::format(
        "{} has a checkpoint of DeepSpeed, which is not loaded as it is: {}",
        path, how));
}

}  // namespace thinwire::checkpoint
