// SPDX-License-Identifier: Apache-2.0
// The only file that calls oneDNN and the only one that catches its exceptions.
#include "core/kernel/tile_kernel.h"

#include <array>
#include <bit>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_ukernel.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/dtype.h"
#include "core/base/mutex.h"
#include "core/base/openmp.h"

namespace headwise {
namespace {

using dnnl::memory;

const dnnl::engine& CpuEngine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

// This thread's scratch memory for oneDNN; null for no bytes.
void* ThreadScratch(size_t bytes) {
  thread_local std::vector<char> buffer;
  if (buffer.size() < bytes) buffer.resize(bytes);
  return bytes == 0 ? nullptr : buffer.data();
}

#ifdef DNNL_EXPERIMENTAL_UKERNEL

memory::data_type TypeOfA(TileType type) {
  return type == TileType::kF32    ? memory::data_type::f32
         : type == TileType::kBf16 ? memory::data_type::bf16
                                   : memory::data_type::u8;
}

memory::data_type TypeOfB(TileType type) {
  return type == TileType::kU8S8 ? memory::data_type::s8 : TypeOfA(type);
}

memory::data_type TypeOfC(TileType type) {
  return type == TileType::kU8S8 ? memory::data_type::s32 : memory::data_type::f32;
}

class BrgemmKernel : public TileKernel {
 public:
  explicit BrgemmKernel(const TileShape& s)
      : brgemm_(s.m, s.n, s.k, /*batch_size=*/1, s.lda, s.ldb, s.ldc, TypeOfA(s.type),
                TypeOfB(s.type), TypeOfC(s.type)) {
    brgemm_.set_add_C(s.accumulate);
    brgemm_.finalize();
    brgemm_.generate();
    scratch_bytes_ = brgemm_.get_scratchpad_size();
  }

  void Run(const void* a, const void* b, void* c) const override {
    static const dnnl_dim_t kNoOffsets[2] = {0, 0};
    // The C entry takes the offsets as an array; the C++ one would want a vector made per call.
    dnnl_brgemm_execute(brgemm_.get(), a, b, kNoOffsets, c, ThreadScratch(scratch_bytes_));
  }

 private:
  dnnl::ukernel::brgemm brgemm_;
  size_t scratch_bytes_ = 0;
};

#endif  // DNNL_EXPERIMENTAL_UKERNEL

// A column of a matrix, one after the other: oneDNN 3.7 takes the row stride of a matrix with one
// column for something else (it leaves rows of C unwritten).
void CopyColumn(const float* from, int64_t from_stride, int64_t count, float* to,
                int64_t to_stride) {
  for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
}

// The same product by an f32 matmul primitive. Memory objects only wrap the pointers of the call.
class PrimitiveKernel : public TileKernel {
 public:
  explicit PrimitiveKernel(const TileShape& s)
      : shape_(s),
        a_desc_(Matrix(s.m, s.k, s.lda)),
        b_desc_(Matrix(s.k, s.n, s.ldb)),
        c_desc_(Matrix(s.m, s.n, s.ldc)) {
    // A primitive keeps the thread count that it was made under.
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl::primitive_attr attributes;
    // The library's own scratchpad belongs to the primitive, and all workers run the same one.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attributes.set_post_ops(ops);
    }
    const dnnl::matmul::primitive_desc desc(CpuEngine(), a_desc_, b_desc_, c_desc_, attributes);
    scratch_desc_ = desc.scratchpad_desc();
    matmul_ = dnnl::matmul(desc);
    omp_set_num_threads(threads);
  }

  void Run(const void* a_data, const void* b_data, void* c_data) const override {
    const float* a = static_cast<const float*>(a_data);
    const float* b = static_cast<const float*>(b_data);
    float* c = static_cast<float*>(c_data);
    if (shape_.n > 1 && shape_.k > 1) {
      Execute(a, b, c);
      return;
    }
    const int64_t m = shape_.m, n = shape_.n, k = shape_.k;
    std::vector<float> columns(static_cast<size_t>(m + k + m));
    float* a_column = columns.data();
    float* b_column = a_column + m;
    float* c_column = b_column + k;
    if (k == 1) CopyColumn(a, shape_.lda, m, a_column, 1);
    if (n == 1) CopyColumn(b, shape_.ldb, k, b_column, 1);
    if (n == 1) CopyColumn(c, shape_.ldc, m, c_column, 1);
    Execute(k == 1 ? a_column : a, n == 1 ? b_column : b, n == 1 ? c_column : c);
    if (n == 1) CopyColumn(c_column, 1, m, c, shape_.ldc);
  }

 private:
  static memory::desc Matrix(int64_t rows, int64_t columns, int64_t stride) {
    return {{rows, columns}, memory::data_type::f32, memory::dims{columns == 1 ? 1 : stride, 1}};
  }

  void Execute(const float* a, const float* b, float* c) const {
    thread_local dnnl::stream stream(CpuEngine());
    const dnnl::engine& engine = CpuEngine();
    void* scratch = ThreadScratch(scratch_desc_.get_size());
    matmul_.execute(stream, {{DNNL_ARG_SRC, memory(a_desc_, engine, const_cast<float*>(a))},
                             {DNNL_ARG_WEIGHTS, memory(b_desc_, engine, const_cast<float*>(b))},
                             {DNNL_ARG_DST, memory(c_desc_, engine, c)},
                             {DNNL_ARG_SCRATCHPAD, memory(scratch_desc_, engine, scratch)}});
  }

  const TileShape shape_;
  memory::desc a_desc_, b_desc_, c_desc_, scratch_desc_;
  dnnl::matmul matmul_;
};

// Reduced types on any CPU: the f32 product of the same numbers. Products of two bf16 are exact in
// f32. Products of two 8-bit numbers are too, and so are their sums up to kMaxExactDepth terms:
// 1024 * 127 * 127 < 2^24. For that A's offset of 128 is taken off first and put back by the sums
// of B's columns.
class WidenedKernel : public TileKernel {
 public:
  explicit WidenedKernel(const TileShape& s)
      : shape_(s), product_({.m = s.m, .n = s.n, .k = s.k, .lda = s.k, .ldb = s.n, .ldc = s.n}) {}

  void Run(const void* a, const void* b, void* c) const override {
    thread_local std::vector<float> buffer;
    const int64_t m = shape_.m, n = shape_.n, k = shape_.k;
    buffer.resize(static_cast<size_t>(m * k + k * n + m * n));
    float* wide_a = buffer.data();
    float* wide_b = wide_a + m * k;
    float* wide_c = wide_b + k * n;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; ++j) wide_a[i * k + j] = ElementOfA(a, i * shape_.lda + j);
    }
    const int64_t group = Interleave(shape_.type);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        wide_b[i * n + j] = ElementOfB(b, InterleavedIndex(group, shape_.ldb, i, j));
      }
    }
    product_.Run(wide_a, wide_b, wide_c);
    if (shape_.type == TileType::kBf16) {
      Add(wide_c, static_cast<float*>(c));
    } else {
      AddExact(wide_b, wide_c, static_cast<int32_t*>(c));
    }
  }

 private:
  float ElementOfA(const void* a, int64_t i) const {
    if (shape_.type == TileType::kBf16) return Bf16ToFloat(static_cast<const uint16_t*>(a)[i]);
    return static_cast<float>(static_cast<const uint8_t*>(a)[i] - 128);
  }

  float ElementOfB(const void* b, int64_t i) const {
    if (shape_.type == TileType::kBf16) return Bf16ToFloat(static_cast<const uint16_t*>(b)[i]);
    return static_cast<float>(static_cast<const int8_t*>(b)[i]);
  }

  void Add(const float* product, float* c) const {
    for (int64_t i = 0; i < shape_.m; ++i) {
      for (int64_t j = 0; j < shape_.n; ++j) {
        float& place = c[i * shape_.ldc + j];
        place = product[i * shape_.n + j] + (shape_.accumulate ? place : 0.0f);
      }
    }
  }

  void AddExact(const float* wide_b, const float* product, int32_t* c) const {
    for (int64_t j = 0; j < shape_.n; ++j) {
      int32_t column = 0;
      for (int64_t i = 0; i < shape_.k; ++i) {
        column += static_cast<int32_t>(wide_b[i * shape_.n + j]);
      }
      for (int64_t i = 0; i < shape_.m; ++i) {
        int32_t& place = c[i * shape_.ldc + j];
        const int32_t sum = static_cast<int32_t>(product[i * shape_.n + j]) + 128 * column;
        place = sum + (shape_.accumulate ? place : 0);
      }
    }
  }

  const TileShape shape_;
  const PrimitiveKernel product_;
};

absl::StatusOr<std::shared_ptr<const TileKernel>> Compile(KernelPath path, const TileShape& shape) {
  try {
    if (path == KernelPath::kPrimitive) {
      if (shape.type == TileType::kF32) return std::make_shared<PrimitiveKernel>(shape);
      return std::make_shared<WidenedKernel>(shape);
    }
#ifdef DNNL_EXPERIMENTAL_UKERNEL
    return std::make_shared<BrgemmKernel>(shape);
#else
    return absl::UnimplementedError("kernel: this oneDNN has no BRGeMM microkernel; was BRGEMM");
#endif
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(
        absl::StrCat("kernel: oneDNN must be able to make the tile; was ", shape.m, "x", shape.n,
                     "x", shape.k, " (", error.message, ")"));
  }
}

class KernelCache {
 public:
  absl::StatusOr<std::shared_ptr<const TileKernel>> Get(KernelPath path, const TileShape& shape) {
    MutexLock lock(&mu_);
    std::weak_ptr<const TileKernel>& slot = kernels_[{path, shape}];
    if (std::shared_ptr<const TileKernel> kernel = slot.lock()) return kernel;
    absl::StatusOr<std::shared_ptr<const TileKernel>> kernel = Compile(path, shape);
    if (kernel.ok()) slot = *kernel;
    return kernel;
  }

 private:
  Mutex mu_;
  std::map<std::pair<KernelPath, TileShape>, std::weak_ptr<const TileKernel>> kernels_
      ABSL_GUARDED_BY(mu_);
};

// A product of whole numbers that any type holds, with sums that 16-bit accumulators don't: the
// microkernel is asked for types that some CPUs run wrongly (s8 x s8 here, u8 x s8 without VNNI).
bool RightNumbers(const TileKernel& kernel, const TileShape& s) {
  std::vector<float> a32(static_cast<size_t>(s.m * s.k)), b32(static_cast<size_t>(s.k * s.n));
  std::vector<uint16_t> a16(a32.size()), b16(b32.size());
  std::vector<uint8_t> a8(a32.size());
  std::vector<int8_t> b8(b32.size());
  const int64_t group = Interleave(s.type);
  for (size_t i = 0; i < a32.size(); ++i) {
    a8[i] = static_cast<uint8_t>(i % 3 == 0 ? 255 : 128 + i % 5);
    a32[i] = static_cast<float>(a8[i]);
    a16[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(a32[i]) >> 16);
  }
  for (int64_t k = 0; k < s.k; ++k) {
    for (int64_t n = 0; n < s.n; ++n) {
      const size_t at = static_cast<size_t>(InterleavedIndex(group, s.ldb, k, n));
      b8[at] = static_cast<int8_t>(n % 2 == 0 ? 127 : -(k % 4));
      b32[at] = static_cast<float>(b8[at]);
      b16[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(b32[at]) >> 16);
    }
  }
  std::vector<int32_t> c(static_cast<size_t>(s.m * s.n));
  const void* a = s.type == TileType::kF32    ? static_cast<const void*>(a32.data())
                  : s.type == TileType::kBf16 ? static_cast<const void*>(a16.data())
                                              : a8.data();
  const void* b = s.type == TileType::kF32    ? static_cast<const void*>(b32.data())
                  : s.type == TileType::kBf16 ? static_cast<const void*>(b16.data())
                                              : b8.data();
  kernel.Run(a, b, c.data());
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t n = 0; n < s.n; ++n) {
      int32_t expected = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        const int32_t right = n % 2 == 0 ? 127 : static_cast<int32_t>(-(k % 4));
        expected += static_cast<int32_t>(a8[static_cast<size_t>(i * s.k + k)]) * right;
      }
      const int32_t bits = c[static_cast<size_t>(i * s.n + n)];
      const float value = std::bit_cast<float>(bits);
      if (s.type == TileType::kU8S8 ? bits != expected : value != static_cast<float>(expected)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TileKernel>> GetTileKernel(KernelPath path,
                                                                const TileShape& shape) {
  static KernelCache* const cache = new KernelCache;
  return cache->Get(path == KernelPath::kAuto ? BestKernelPath(shape.type) : path, shape);
}

bool KernelPathAvailable(KernelPath path, TileType type) {
  const TileShape probe{.type = type, .m = 8, .n = 16, .k = 8, .lda = 8, .ldb = 16, .ldc = 16};
  const auto kernel = Compile(path, probe);
  return kernel.ok() && RightNumbers(**kernel, probe);
}

KernelPath BestKernelPath(TileType type) {
  const auto best = [](TileType t) {
    return KernelPathAvailable(KernelPath::kBrgemm, t) ? KernelPath::kBrgemm
                                                       : KernelPath::kPrimitive;
  };
  static const std::array<KernelPath, 3> paths = {best(TileType::kF32), best(TileType::kBf16),
                                                  best(TileType::kU8S8)};
  return paths[static_cast<size_t>(type)];
}

std::string OneDnnIsaName() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "SSE41";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx2_vnni:
      return "AVX2_VNNI";
    case dnnl::cpu_isa::avx2_vnni_2:
      return "AVX2_VNNI_2";
    case dnnl::cpu_isa::avx512_core:
      return "AVX512_CORE";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX512_CORE_BF16";
    case dnnl::cpu_isa::avx512_core_fp16:
      return "AVX512_CORE_FP16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX512_CORE_AMX";
    default:
      return "DEFAULT";
  }
}

std::string OneDnnVersionText() {
  const dnnl::version_t* version = dnnl::version();
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace headwise
