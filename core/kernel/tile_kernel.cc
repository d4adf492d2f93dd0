// SPDX-License-Identifier: Apache-2.0
// The only file that calls oneDNN and the only one that catches its exceptions.
#include "core/kernel/tile_kernel.h"

#include <omp.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_ukernel.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

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

class BrgemmKernel : public TileKernel {
 public:
  explicit BrgemmKernel(const TileShape& s)
      : brgemm_(s.m, s.n, s.k, /*batch_size=*/1, s.lda, s.ldb, s.ldc, memory::data_type::f32,
                memory::data_type::f32, memory::data_type::f32) {
    brgemm_.set_add_C(s.accumulate);
    brgemm_.finalize();
    brgemm_.generate();
    scratch_bytes_ = brgemm_.get_scratchpad_size();
  }

  void Run(const float* a, const float* b, float* c) const override {
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

// The same product by a matmul primitive. Memory objects only wrap the pointers of the call.
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

  void Run(const float* a, const float* b, float* c) const override {
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

absl::StatusOr<std::shared_ptr<const TileKernel>> Compile(KernelPath path, const TileShape& shape) {
  try {
    if (path == KernelPath::kPrimitive) return std::make_shared<PrimitiveKernel>(shape);
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

}  // namespace

absl::StatusOr<std::shared_ptr<const TileKernel>> GetTileKernel(KernelPath path,
                                                                const TileShape& shape) {
  static KernelCache* const cache = new KernelCache;
  return cache->Get(path == KernelPath::kAuto ? BestKernelPath() : path, shape);
}

bool KernelPathAvailable(KernelPath path) {
  const TileShape probe{.m = 8, .n = 16, .k = 8, .lda = 8, .ldb = 16, .ldc = 16};
  return Compile(path, probe).ok();
}

KernelPath BestKernelPath() {
  static const KernelPath best =
      KernelPathAvailable(KernelPath::kBrgemm) ? KernelPath::kBrgemm : KernelPath::kPrimitive;
  return best;
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
