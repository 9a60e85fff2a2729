// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tiny_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "support/values.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/checksum.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::checkpoint::test {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush()) << path;
}

std::string safetensors_of(const std::vector<Content>& contents) {
  std::vector<TensorEntry> tensors;
  for (const Content& content : contents)
    tensors.push_back({content.name, content.type, content.shape});
  const auto header = place_tensors(std::move(tensors), {{"format", "pt"}});
  std::string bytes = write_header(header);
  for (const TensorEntry& tensor : header.tensors)
    bytes +=
        std::find_if(contents.begin(), contents.end(), [&](const Content& c) {
          return c.name == tensor.name;
        })->bytes;
  EXPECT_EQ(bytes.size(), header.file_bytes);
  return bytes;
}

SavedFile saved_file(const std::string& name, std::string_view bytes) {
  SavedFile file{name, bytes.size()};
  for (std::size_t at = 0; at < bytes.size(); at += kChunkBytes)
    file.chunk_hashes.push_back(checksum(bytes.substr(at, kChunkBytes)));
  return file;
}

std::vector<SavedParameter> tiny_parameters() {
  return {{"a", {5}}, {"empty", {0}}, {"b", {3, 3}, 1}, {"one", {}}};
}

float tiny_value(const Tiny& tiny, std::string_view array, std::size_t i,
                 int rank) {
  return static_cast<float>(tiny.offset + static_cast<double>(array.size()) +
                            0.25 * static_cast<double>(i) + 100.0 * rank);
}

namespace {

std::vector<float> values(const Tiny& tiny, std::string_view array,
                          std::size_t begin, std::size_t end, int rank = 0) {
  std::vector<float> all;
  for (std::size_t i = begin; i < end; ++i)
    all.push_back(tiny_value(tiny, array, i, rank));
  return all;
}

constexpr std::size_t kBegins[] = {0, 5, 5, 14, 15};

// Rows for elements [begin, end) of the flat array, cut at parameters and, if
// `most` is not 0, into pieces of that many elements.
std::vector<std::int64_t> rows(std::size_t begin, std::size_t end,
                               std::size_t most = 0) {
  std::vector<std::int64_t> list;
  for (std::size_t p = 0; p < 4; ++p) {
    std::size_t at = std::max(begin, kBegins[p]);
    while (at < std::min(end, kBegins[p + 1])) {
      std::size_t count = std::min(end, kBegins[p + 1]) - at;
      if (most != 0) count = std::min(count, most);
      for (const std::size_t value : {p, at - kBegins[p], count})
        list.push_back(static_cast<std::int64_t>(value));
      at += count;
    }
  }
  return list;
}

Content index(const std::string& name, const std::vector<std::int64_t>& list) {
  return Content::of(name, {list.size() / 3, 3}, list);
}

SavedFile write_state(const std::string& directory, const Tiny& tiny,
                      int rank) {
  const auto world = static_cast<std::size_t>(tiny.world);
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t begin = kTinySize * r / world;
  const std::size_t end = kTinySize * (r + 1) / world;
  // Shards are cut elsewhere, and in the other direction.
  const std::size_t shard_begin = kTinySize - end;
  const std::size_t shard_end = kTinySize - begin;
  std::vector<Content> contents{
      Content::of("exp_avg", values(tiny, "exp_avg", begin, end)),
      Content::of("exp_avg_sq",
                  values(tiny, "exp_avg_sq", shard_begin, shard_end)),
      Content::of("worker_error",
                  values(tiny, "worker_error", 0, kTinySize, rank)),
      Content::of(
          "extra/random",
          std::vector<std::uint8_t>(7, static_cast<std::uint8_t>('0' + rank))),
      index("fragments/0", rows(begin, end)),
      index("fragments/1", rows(shard_begin, shard_end)),
      index("fragments/2", rows(0, kTinySize))};
  std::vector<std::pair<std::string, std::string>> tensors{
      {"exp_avg", "fragments/0"},
      {"exp_avg_sq", "fragments/1"},
      {"worker_error", "fragments/2"},
      {"extra/random", ""}};
  if (tiny.has_masters) {
    contents.push_back(Content::of(
        "masters", values(tiny, "weights", shard_begin, shard_end)));
    tensors.emplace_back("masters", "fragments/1");
  }
  if (rank == 0) {
    const auto pairs = rows(0, kTinySize, 2);
    contents.push_back(index("fragments/3", pairs));
    contents.push_back(
        Content::of("scales", values(tiny, "scales", 0, pairs.size() / 3)));
    contents.push_back(Content::of("trust", values(tiny, "trust", 0, 4)));
    contents.push_back(
        Content::of("history", std::vector<double>{tiny.offset, 0.5, -0.0}));
    tensors.insert(tensors.end(),
                   {{"scales", "fragments/3"}, {"trust", ""}, {"history", ""}});
  }
  const std::string name =
      fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, tiny.world);
  const std::string bytes = safetensors_of(contents);
  write_file(directory + "/" + name, bytes);
  SavedFile file = saved_file(name, bytes);
  file.tensors = std::move(tensors);
  return file;
}

Manifest tiny_manifest(const Tiny& tiny) {
  using optim::Axis;
  using optim::Sharing;
  Manifest m;
  m.id = tiny.id;
  m.run = std::string(32, 'd');
  m.save_index = tiny.step;
  m.step = tiny.step;
  m.written = "2026-09-01T12:00:00Z";
  m.library = "0.5.0";
  m.world = tiny.world;
  m.optimizer = "onebit_adam";
  m.semantics = "corrected";
  m.phase = "compressed";
  m.precision = "fp32";
  m.parameters = tiny_parameters();
  m.aliases = {{"tied", "a"}};
  m.others = {{"mask", {3}, 0, {DType::kUInt8, "BOOL"}}};
  m.arrays = {{"exp_avg", Axis::kElement, Sharing::kSame},
              {"exp_avg_sq", Axis::kElement, Sharing::kSharded},
              {"worker_error", Axis::kElement, Sharing::kMean},
              {"scales", Axis::kRange, Sharing::kSame},
              {"trust", Axis::kParameter, Sharing::kSame},
              {"history", Axis::kFree, Sharing::kSame, DType::kFloat64},
              {"extra/random", Axis::kFree, Sharing::kOwn, DType::kUInt8}};
  if (tiny.has_masters) {
    m.precision = "bf16";
    m.arrays.push_back(
        {"masters", Axis::kElement, Sharing::kSharded, DType::kFloat32, true});
    for (SavedParameter& parameter : m.parameters)
      parameter.type = {DType::kBFloat16};
  }
  m.scalars.put_integer("step", tiny.step);
  m.scalars.put_real("loss_scale", 65536);
  m.scalars_of_ranks.resize(static_cast<std::size_t>(tiny.world));
  m.weight_files = {"model.safetensors"};
  return m;
}

}  // namespace

void write_tiny(const std::string& directory, const Tiny& tiny) {
  fs::create_directories(directory);
  Manifest m = tiny_manifest(tiny);
  std::vector<Content> weights{
      {"mask", {DType::kUInt8, "BOOL"}, {3}, std::string("\1\0\1", 3)}};
  for (std::size_t p = 0; p < m.parameters.size(); ++p) {
    const auto exact = values(tiny, "weights", kBegins[p], kBegins[p + 1]);
    std::vector<BFloat16> rounded;
    for (const float value : exact) rounded.push_back(to_bfloat16(value));
    const SavedParameter& parameter = m.parameters[p];
    weights.push_back(
        tiny.has_masters ? Content::of(parameter.name, parameter.shape, rounded)
                         : Content::of(parameter.name, parameter.shape, exact));
  }
  const std::string bytes = safetensors_of(weights);
  write_file(directory + "/model.safetensors", bytes);
  m.files.push_back(saved_file("model.safetensors", bytes));
  for (int rank = 0; rank < tiny.world; ++rank)
    m.files.push_back(write_state(directory, tiny, rank));
  const std::string config = "{\"model_type\": \"tiny\"}\n";
  write_file(directory + "/config.json", config);
  m.files.push_back(saved_file("config.json", config));
  write_file(directory + "/manifest.json", write_manifest(m));
}

void read_all(const std::string& directory) {
  FileSystem& files = posix_file_system();
  const Manifest manifest = read_manifest(files, directory);
  SavedArrays arrays(files, directory, manifest);
  for (const SavedArray& array : manifest.arrays)
    for (int rank = 0; rank < std::min(manifest.world, 4); ++rank) {
      (void)arrays.read_all(array.name, rank);
      if (array.axis != optim::Axis::kElement) continue;
      std::vector<float> b(9);
      arrays.read(array.name, rank, 2, {0, b.size()}, b);
    }
  Weights weights(files, directory, manifest);
  for (const std::string& name : weights.names()) {
    const TensorEntry& tensor = *weights.find(name);
    Buffer all(tensor.bytes / size_of(tensor.type.dtype), tensor.type.dtype);
    weights.read(name, all.view());
  }
}

// ---- as save() writes it

namespace {

constexpr std::int64_t kSteps = 8;  // the last two are local

const optim::ZeroOneAdamOptions kOptions{.learning_rate = 0.01,
                                         .var_freeze_step = 3,
                                         .var_update_scaler = 1,
                                         .local_step_scaler = 1,
                                         .local_step_clipper = 3};

Extra extra_of(int rank, std::int64_t seen) {
  Extra extra;
  extra.common.put_integer("next", 17);
  extra.common.put("seen", std::vector<std::int64_t>{seen, 5, 8});
  extra.own.put_integer("rank", rank);
  extra.own.put("random",
                std::vector<std::uint8_t>(static_cast<std::size_t>(rank) + 2,
                                          static_cast<std::uint8_t>(seen)));
  return extra;
}

}  // namespace

std::string write_full(const std::string& root, const Full& full) {
  std::string path;
  const auto layout = ParameterLayout::of(
      {{"w", {40, 30}, 0}, {"b", {33}, 1}, {"empty", {0}, 0}, {"one", {}, 1}},
      2);
  comm::run_local_ranks(full.world, [&](comm::Communicator& comm) {
    std::vector<float> params(layout.size(), 1.0f);
    std::vector<float> frozen(12, full.frozen);
    std::vector<std::uint8_t> mask{1, 0, 1};
    optim::ZeroOneAdam optimizer(comm, layout, kOptions);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      auto grads = thinwire::test::normal(
          layout.size(), static_cast<std::uint32_t>(t * 8 + comm.rank()));
      optimizer.step(params, grads);
    }
    const Training training{.comm = comm,
                            .layout = layout,
                            .params = params,
                            .optimizer = optimizer,
                            .step = kSteps,
                            .others = {{"frozen", {3, 4}, View(frozen)},
                                       {"mask", {3}, View(mask), "BOOL"}},
                            .aliases = {{"tied", "w"}}};
    const SaveReport report = save(
        training, root, extra_of(comm.rank(), full.seen), {.durable = false});
    if (comm.rank() == 0) path = report.path;
  });
  return path;
}

}  // namespace thinwire::checkpoint::test
