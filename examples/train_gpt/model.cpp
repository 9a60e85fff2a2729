// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "thinwire/torch/engine.h"

namespace thinwire::train_gpt {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kHistory = 3;  // tables: this byte and two before
constexpr double kEmbeddingDeviation = 0.02;
constexpr double kWeightGain = 0.8;

std::int64_t to_int64(std::size_t value) {
  return static_cast<std::int64_t>(value);
}

// 16-bit parameters are computed with in fp32.
Tensor wide(const Tensor& parameter) { return parameter.to(at::kFloat); }

Tensor through(const nn::Linear& layer, const Tensor& x) {
  const Tensor bias = layer->bias.defined() ? wide(layer->bias) : layer->bias;
  return at::linear(x, wide(layer->weight), bias);
}

Tensor through(const nn::LayerNorm& layer, const Tensor& x) {
  return at::layer_norm(x, layer->options.normalized_shape(),
                        wide(layer->weight), wide(layer->bias),
                        layer->options.eps());
}

Tensor through(const nn::Embedding& table, const Tensor& indices) {
  return at::embedding(wide(table->weight), indices);
}

nn::LayerNorm make_norm(std::size_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({to_int64(width)}));
}

struct Block : nn::Module {
  explicit Block(const ModelShape& shape)
      : heads(to_int64(shape.heads)), width(to_int64(shape.width)) {
    attention_norm = register_module("attention_norm", make_norm(shape.width));
    query_key_value =
        register_module("query_key_value", nn::Linear(width, 3 * width));
    attention_out = register_module("attention_out", nn::Linear(width, width));
    mlp_norm = register_module("mlp_norm", make_norm(shape.width));
    mlp_in = register_module("mlp_in", nn::Linear(width, 4 * width));
    mlp_out = register_module("mlp_out", nn::Linear(4 * width, width));
  }

  // x is [sequences * context, width].
  Tensor forward(const Tensor& x, std::int64_t sequences) {
    const Tensor middle = x + attention(through(attention_norm, x), sequences);
    const Tensor hidden =
        at::gelu(through(mlp_in, through(mlp_norm, middle)), "tanh");
    return middle + through(mlp_out, hidden);
  }

  Tensor attention(const Tensor& x, std::int64_t sequences) {
    const std::int64_t context = x.size(0) / sequences;
    const Tensor parts =
        through(query_key_value, x)
            .view({sequences, context, 3, heads, width / heads})
            .permute({2, 0, 3, 1, 4});
    const Tensor mixed = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0,
        /*is_causal=*/true);
    return through(attention_out,
                   mixed.transpose(1, 2).reshape({sequences * context, width}));
  }

  std::int64_t heads;
  std::int64_t width;
  nn::LayerNorm attention_norm = nullptr;
  nn::Linear query_key_value = nullptr;
  nn::Linear attention_out = nullptr;
  nn::LayerNorm mlp_norm = nullptr;
  nn::Linear mlp_in = nullptr;
  nn::Linear mlp_out = nullptr;
};

struct Gpt : nn::Module {
  explicit Gpt(const ModelShape& shape) {
    const std::int64_t width = to_int64(shape.width);
    for (std::int64_t back = 0; back < kHistory; ++back) {
      tables.push_back(register_module("byte_" + std::to_string(back),
                                       nn::Embedding(kBytes, width)));
    }
    positions = register_module("positions",
                                nn::Embedding(to_int64(shape.context), width));
    for (std::size_t i = 0; i < shape.layers; ++i) {
      blocks.push_back(register_module("block_" + std::to_string(i),
                                       std::make_shared<Block>(shape)));
    }
    final_norm = register_module("final_norm", make_norm(shape.width));
    head = register_module(
        "head", nn::Linear(nn::LinearOptions(width, kBytes).bias(false)));
  }

  // history is [kHistory, sequences, context]; the result [positions, kBytes].
  Tensor forward(const Tensor& history) {
    const std::int64_t sequences = history.size(1);
    const std::int64_t context = history.size(2);
    Tensor x = through(tables[0], history[0]);
    for (std::size_t back = 1; back < tables.size(); ++back) {
      x = x + through(tables[back], history[to_int64(back)]);
    }
    x = x + wide(positions->weight).narrow(0, 0, context);
    x = x.view({sequences * context, -1});
    for (const auto& block : blocks) x = block->forward(x, sequences);
    return through(head, through(final_norm, x));
  }

  std::vector<nn::Embedding> tables;
  nn::Embedding positions = nullptr;
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm final_norm = nullptr;
  nn::Linear head = nullptr;
};

// Tensors of shape [kHistory, sequences, context] and [sequences * context].
struct Tokens {
  Tensor history;
  Tensor targets;
};

Tokens tokens_of(const Batch& batch) {
  const std::size_t n = batch.sequences;
  const std::size_t context = batch.context;
  Tokens tokens{
      at::zeros({kHistory, to_int64(n), to_int64(context)}, at::kLong),
      at::empty({to_int64(n * context)}, at::kLong)};
  std::int64_t* history = tokens.history.mutable_data_ptr<std::int64_t>();
  std::int64_t* target = tokens.targets.mutable_data_ptr<std::int64_t>();
  for (std::size_t s = 0; s < n; ++s) {
    const std::uint8_t* bytes = &batch.bytes[s * (context + 1)];
    for (std::size_t t = 0; t < context; ++t) {
      const std::size_t at = s * context + t;
      for (std::size_t back = 0; back < kHistory && back <= t; ++back) {
        history[back * n * context + at] = bytes[t - back];
      }
      target[at] = bytes[t + 1];
    }
  }
  return tokens;
}

}  // namespace

struct Model::Impl {
  explicit Impl(const ModelShape& model_shape)
      : shape(model_shape), gpt(model_shape) {}

  // Allocated on first use, because an engine has its own memory.
  [[nodiscard]] torch::ModuleMemory& own_memory() {
    if (!memory) memory.emplace(gpt);
    return *memory;
  }

  ModelShape shape;
  Gpt gpt;
  std::optional<torch::ModuleMemory> memory;
  std::optional<torch::Engine> engine;
};

Model::Model(const ModelShape& shape) {
  // Set in every thread that computes, because torch keeps this setting per
  // thread.
  at::set_num_threads(1);
  impl_ = std::make_unique<Impl>(shape);
}

Model::~Model() = default;

void Model::initialize(std::uint64_t seed) {
  const ::torch::NoGradGuard no_grad;
  // All threads of the process share torch's global generator, so this is
  // another one.
  const at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](nn::Linear& linear, double divisor) {
    const double fan_in = static_cast<double>(linear->weight.size(1));
    linear->weight.normal_(0.0, kWeightGain / std::sqrt(fan_in) / divisor,
                           generator);
    linear->bias.zero_();
  };
  const double residual =
      std::sqrt(2.0 * static_cast<double>(impl_->shape.layers));
  Gpt& gpt = impl_->gpt;
  for (auto& table : gpt.tables) {
    table->weight.normal_(0.0, kEmbeddingDeviation, generator);
  }
  gpt.positions->weight.normal_(0.0, kEmbeddingDeviation, generator);
  for (const auto& block : gpt.blocks) {
    draw(block->query_key_value, 1.0);
    draw(block->attention_out, residual);
    draw(block->mlp_in, 1.0);
    draw(block->mlp_out, residual);
    block->attention_norm->reset_parameters();
    block->mlp_norm->reset_parameters();
  }
  gpt.final_norm->reset_parameters();
  gpt.head->weight.normal_(0.0, kEmbeddingDeviation, generator);
}

std::size_t Model::context() const noexcept { return impl_->shape.context; }

const ParameterLayout& Model::layout() const {
  return impl_->engine ? impl_->engine->layout() : impl_->own_memory().layout();
}

View Model::params() {
  return impl_->engine ? impl_->engine->params() : impl_->own_memory().params();
}

View Model::grads() { return impl_->own_memory().grads(); }

void Model::train_with(comm::Communicator& comm, const config::Config& config) {
  impl_->memory.reset();
  impl_->engine.emplace(impl_->gpt, comm, config);
}

engine::Engine& Model::engine() noexcept { return impl_->engine->core(); }

engine::EngineReport Model::step() { return impl_->engine->step(); }

double Model::backward(const Batch& batch) {
  const Tokens tokens = tokens_of(batch);
  const Tensor loss = at::cross_entropy_loss(impl_->gpt.forward(tokens.history),
                                             tokens.targets);
  if (impl_->engine) {
    impl_->engine->backward(loss);
  } else {
    impl_->own_memory().zero_grad();
    loss.backward();
    impl_->own_memory().check();
  }
  return loss.item<double>();
}

double Model::loss_sum(const Batch& batch) {
  const ::torch::NoGradGuard no_grad;
  const Tokens tokens = tokens_of(batch);
  const Tensor losses =
      at::cross_entropy_loss(impl_->gpt.forward(tokens.history), tokens.targets,
                             /*weight=*/{}, at::Reduction::None);
  return losses.to(at::kDouble).sum().item<double>();
}

}  // namespace thinwire::train_gpt
