// The rewriting of CUDA C++: kernels are found, inline PTX becomes calls.
#include "source.h"

#include <cctype>
#include <stdexcept>
#include <vector>

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

std::string trimmed(const std::string& text) {
    size_t first = 0, last = text.size();
    while (first < last && is_space(text[first])) ++first;
    while (last > first && is_space(text[last - 1])) --last;
    return text.substr(first, last - first);
}

// Walks over the tokens of preprocessed text: no comments, no directives but line markers.
class Scanner {
public:
    explicit Scanner(const std::string& text) : text(text) {}

    const std::string& text;
    size_t at = 0;

    bool at_end() const { return at >= text.size(); }

    // Moves past spaces and line markers.
    void skip_space() {
        for (; !at_end(); ++at) {
            if (text[at] == '#' && (at == 0 || text[at - 1] == '\n')) {
                at = text.find('\n', at);
                if (at == std::string::npos) at = text.size();
            }
            if (at_end() || !is_space(text[at])) return;
        }
    }

    // The token at `at`, moved past: a word, a literal, or one character.
    std::string next() {
        skip_space();
        const size_t start = at;
        if (at_end()) return "";
        if (text[at] == '"' || text[at] == '\'') {
            if (text[at] == '"' && start > 0 && text[start - 1] == 'R') {
                const size_t parenthesis = text.find('(', at);
                const std::string closing = ")" + text.substr(at + 1, parenthesis - at - 1) + "\"";
                at = text.find(closing, parenthesis) + closing.size();
            } else {
                const char quote = text[at++];
                while (!at_end() && text[at] != quote) at += text[at] == '\\' ? 2 : 1;
                ++at;
            }
        } else if (is_word(text[at])) {
            // The ' of 1'000 is within a number.
            const bool is_number = std::isdigit(static_cast<unsigned char>(text[at]));
            while (!at_end() && (is_word(text[at]) || (is_number && text[at] == '\'' && is_word(text[at + 1])))) ++at;
        } else {
            ++at;
        }
        return text.substr(start, at - start);
    }

    std::string peek() {
        const size_t start = at;
        std::string token = next();
        at = start;
        return token;
    }

    // The text between the parentheses that open here, moved past them.
    std::string parenthesised() {
        if (next() != "(") throw std::runtime_error("expected ( in: " + text.substr(at, 60));
        const size_t start = at;
        for (int depth = 1; !at_end();) {
            const std::string token = next();
            if (token == "(") ++depth;
            if (token == ")" && --depth == 0) return text.substr(start, at - start - 1);
        }
        throw std::runtime_error("expected )");
    }
};

// The parts of `text` between separators that are in no parentheses or literals.
std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    Scanner scanner(text);
    int depth = 0;
    while (!scanner.at_end()) {
        const size_t start = scanner.at;
        const std::string token = scanner.next();
        if (token == "(" || token == "[" || token == "{") ++depth;
        if (token == ")" || token == "]" || token == "}") --depth;
        if (depth == 0 && token == std::string(1, separator))
            parts.emplace_back();
        else
            parts.back() += text.substr(start, scanner.at - start);
    }
    return parts;
}

// "a" "b" as ab, with its escapes replaced.
std::string literal(const std::string& quoted) {
    std::string result;
    bool inside = false;
    for (size_t i = 0; i < quoted.size(); ++i) {
        if (quoted[i] == '"')
            inside = !inside;
        else if (inside && quoted[i] == '\\' && i + 1 < quoted.size())
            result += quoted[++i] == 'n' || quoted[i] == 't' ? ' ' : quoted[i];
        else if (inside)
            result += quoted[i];
    }
    return result;
}

// The expression of an operand: x of "=f"(x).
std::string operand_expression(const std::string& operand) {
    const size_t open = operand.find('('), close = operand.rfind(')');
    if (open == std::string::npos || close == std::string::npos)
        throw std::runtime_error("asm: expected an operand like \"=r\"(x), got: " + trimmed(operand));
    return operand.substr(open, close - open + 1);
}

// %0 as the first operand, %%globaltimer as a call, other operands as they are.
std::string ptx_operand(const std::string& written, const std::vector<std::string>& operands) {
    std::string name = trimmed(written);
    if (name.size() > 1 && name.front() == '[' && name.back() == ']') name = trimmed(name.substr(1, name.size() - 2));
    if (name.rfind("%%", 0) == 0) return "::hostcuda::ptx::" + name.substr(2) + "()";
    if (name.size() > 1 && name[0] == '%') {
        const size_t number = std::stoul(name.substr(1));
        if (number >= operands.size()) throw std::runtime_error("asm: no operand " + name);
        return operands[number];
    }
    return name;
}

// One instruction, such as "add.rn.f32 %0, %1, %2", as a call of the function of hostcuda::ptx.
std::string ptx_call(const std::string& instruction, const std::vector<std::string>& operands) {
    const size_t end = instruction.find_first_of(" \t\n");
    std::string function = instruction.substr(0, end);
    for (char& c : function)
        if (!is_word(c)) c = '_';
    std::string arguments;
    if (end != std::string::npos) {
        std::string list;
        for (char c : instruction.substr(end))
            if (c != '{' && c != '}') list += c;
        for (const std::string& part : split(list, ','))
            if (!trimmed(part).empty()) arguments += (arguments.empty() ? "" : ", ") + ptx_operand(part, operands);
    }
    return "::hostcuda::ptx::" + function + "(" + arguments + ");";
}

// asm("template" : outputs : inputs : clobbers) as a block of calls; `content` is what the parentheses hold.
std::string ptx_block(const std::string& content) {
    const std::vector<std::string> sections = split(content, ':');
    std::vector<std::string> operands;
    for (size_t i = 1; i < sections.size() && i < 3; ++i)
        for (const std::string& operand : split(sections[i], ','))
            if (!trimmed(operand).empty()) operands.push_back(operand_expression(operand));
    std::string block = "{";
    for (const std::string& instruction : split(literal(sections[0]), ';'))
        if (!trimmed(instruction).empty()) block += " " + ptx_call(trimmed(instruction), operands);
    return block + " }";
}

struct FoundKernel {
    std::string name;  // with its namespaces
    std::string parameters;
    std::string max_threads;
    bool is_in_namespace;

    // Its address, of the type that tells it from functions of the same name where it can be spelt.
    std::string address() const {
        if (is_in_namespace || parameters.find('=') != std::string::npos) return "&" + name;
        return "static_cast<void (*)(" + parameters + ")>(&" + name + ")";
    }
};

class Rewriter {
public:
    explicit Rewriter(const std::string& text) : scanner(text) {}

    std::string result;
    std::vector<FoundKernel> kernels;

    void run() {
        while (true) {
            const size_t before = scanner.at;
            scanner.skip_space();
            result.append(scanner.text, before, scanner.at - before);
            if (scanner.at_end()) return;
            const std::string token = scanner.next();
            if (token == "__global__")
                kernel();
            else if (token == "__launch_bounds__" || token == "__maxnreg__" || token == "__cluster_dims__")
                scanner.parenthesised();
            else if (token == "asm" || token == "__asm__" || token == "__asm")
                assembly();
            else
                pass(token);
        }
    }

private:
    Scanner scanner;
    std::vector<std::string> scopes;  // of the braces that are open: "a::" of a namespace, "" of anything else
    std::vector<std::string> statement;  // the tokens since the last ; or brace

    void pass(const std::string& token) {
        result += token == "__hostcuda_asm__" ? "__asm__" : token;
        if (token == "{") scopes.push_back(opened_scope());
        if (token == "}" && !scopes.empty()) scopes.pop_back();
        if (token == "{" || token == "}" || token == ";")
            statement.clear();
        else
            statement.push_back(token);
    }

    std::string opened_scope() const {
        std::string names;
        bool is_namespace = false;
        for (const std::string& token : statement) {
            if (is_namespace && token != "inline") names += token;
            if (token == "namespace") is_namespace = true;
        }
        return is_namespace && !names.empty() ? names + "::" : "";
    }

    void assembly() {
        while (scanner.peek() != "(") scanner.next();  // volatile
        const size_t start = scanner.at;
        const std::string content = scanner.parenthesised();
        // The lines of what follows stay those of the source.
        size_t lines = 0;
        for (size_t i = start; i < scanner.at; ++i) lines += scanner.text[i] == '\n';
        result += ptx_block(content) + std::string(lines, '\n');
    }

    // Notes the kernel whose __global__ was just read; what follows is passed on by `run`.
    void kernel() {
        const bool is_template = !statement.empty() && statement.front() == "template";
        const size_t start = scanner.at;
        FoundKernel found{"", "", "1024", false};
        while (!scanner.at_end()) {
            const std::string token = scanner.next();
            if (token == "__launch_bounds__")
                found.max_threads = "(" + split(scanner.parenthesised(), ',')[0] + ")";
            else if (token == "__attribute__" || token == "__maxnreg__" || token == "__cluster_dims__")
                scanner.parenthesised();
            else if (token == "(")
                break;
            else
                found.name = token;
        }
        scanner.at -= 1;
        found.parameters = scanner.parenthesised();
        if (!is_template && scanner.peek() == "{") {
            std::string qualified = "::";
            for (const std::string& scope : scopes) qualified += scope;
            found.is_in_namespace = qualified != "::";
            found.name = qualified + found.name;
            kernels.push_back(found);
        }
        scanner.at = start;
        statement.push_back("__global__");
    }
};

// The exports of entry N, the kernel at the address KERNEL, over launch.h. assembly.cpp reads the kernel's
// mangled name after hostcuda_address_N, and puts it for hostcuda_kernel_N_.
const char* const KERNEL_EXPORTS = R"(
extern "C" {
decltype(KERNEL) hostcuda_address_N = KERNEL;
extern const hostcuda::Parameters<decltype(KERNEL)>::Sizes hostcuda_param_nbytes_hostcuda_kernel_N_{};
extern const unsigned hostcuda_attributes_hostcuda_kernel_N_[4] = {1, MAX_THREADS, 32, 0};
int hostcuda_launch_hostcuda_kernel_N_(void** given, const unsigned* grid, const unsigned* block, unsigned shared) {
    return hostcuda::Parameters<decltype(KERNEL)>::launch<KERNEL>("hostcuda_kernel_N_", given, grid, block, shared,
                                                                  MAX_THREADS);
}
}
)";
std::string with(std::string text, const std::string& name, const std::string& value) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size())
        text.replace(at, name.size(), value);
    return text;
}

std::string exports(const char* text, int number, const std::string& kernel, const std::string& max_threads) {
    return with(with(with(text, "_N", "_" + std::to_string(number)), "MAX_THREADS", max_threads), "KERNEL", kernel);
}

}  // namespace

KernelSource rewrite(const std::string& preprocessed) {
    Rewriter rewriter(preprocessed);
    rewriter.run();
    KernelSource source{rewriter.result + "\n# 1 \"exports\"\n", 0};
    for (const FoundKernel& kernel : rewriter.kernels)
        source.text += exports(KERNEL_EXPORTS, source.num_entries++, kernel.address(), kernel.max_threads);
    return source;
}
