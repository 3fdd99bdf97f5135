//! Rewrites a parsed template so that every operation with value-dependent work is metered.
//!
//! The template engine counts instructions, but one instruction such as `text ~ text` or `[1] * n` can take unlimited
//! time and memory. Operands of such an instruction pass through a filter of this crate, which charges for it
//! beforehand.

use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do, EmitExpr, Expr,
    Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro, Map, Set, SetBlock, Slice, Spanned,
    Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::limits::{BRANCHES, SOURCE_BYTES, TAG_TOKENS, TemplateLimit};

/// Names of the filters around operands; `functions.rs` defines their charges.
pub(super) const ADDEND: &str = "riffle.addend";
pub(super) const TEXT: &str = "riffle.text";
pub(super) const COMPARED: &str = "riffle.compared";
pub(super) const SOUGHT: &str = "riffle.sought";
pub(super) const SEARCHED: &str = "riffle.searched";
pub(super) const TIMES: &str = "riffle.times";
pub(super) const SETTLED: &str = "riffle.settled";
pub(super) const ITERATED: &str = "riffle.iterated";
pub(super) const SPREAD: &str = "riffle.spread";
pub(super) const INDEXED: &str = "riffle.indexed";
pub(super) const KEY: &str = "riffle.key";
pub(super) const BUILT: &str = "riffle.built";
/// Name of the function that sets an attribute of a namespace.
pub(super) const SET_ATTRIBUTE: &str = "riffle.set";

/// Names of the variables for values that become attributes of namespaces. No template can write such a name.
const ATTRIBUTE_VALUES: [&str; 8] = [
    "riffle.0", "riffle.1", "riffle.2", "riffle.3", "riffle.4", "riffle.5", "riffle.6", "riffle.7",
];

/// Constants up to this length cost no more than the instruction that reads them.
const SHORT_BYTES: usize = 256;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Checks the length of the source and of each tag, which limits the recursion of parser and compiler.
pub(super) fn check_source(source: &str, syntax: &SyntaxConfig) -> Result<(), TemplateLimit> {
    if source.len() > SOURCE_BYTES {
        return Err(TemplateLimit::SourceBytes {
            bytes: source.len(),
            limit: SOURCE_BYTES,
        });
    }
    let (mut tokens, mut branches) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        // The parser reads the same tokens and reports the error.
        let Ok((token, span)) = token else { break };
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tokens = 0,
            Token::Ident("elif") => branches += 1,
            _ => {}
        }
        tokens += 1;
        if tokens > TAG_TOKENS {
            return Err(TemplateLimit::TagTokens {
                line: span.start_line.into(),
                limit: TAG_TOKENS,
            });
        }
        if branches > BRANCHES {
            return Err(TemplateLimit::Branches { limit: BRANCHES });
        }
    }
    Ok(())
}

/// The statement with metered operations.
pub(super) fn guarded<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>> {
    Ok(match statement {
        Stmt::Template(template) => Stmt::Template(respan(
            template,
            Template {
                children: body(&template.children)?,
            },
        )),
        Stmt::EmitExpr(emit) => Stmt::EmitExpr(respan(
            emit,
            EmitExpr {
                expr: expression(&emit.expr)?,
            },
        )),
        // Literal text is printed like a value, so it is metered too.
        Stmt::EmitRaw(raw) => {
            let value = Value::from_safe_string(raw.raw.to_owned());
            let expr = Expr::Const(respan(raw, Const { value }));
            Stmt::EmitExpr(respan(raw, EmitExpr { expr }))
        }
        Stmt::WithBlock(with) => with_block(with)?,
        Stmt::Set(_) | Stmt::SetBlock(_) => return Err(syntax("an assignment outside of a template's body")),
        Stmt::ForLoop(_)
        | Stmt::IfCond(_)
        | Stmt::AutoEscape(_)
        | Stmt::FilterBlock(_)
        | Stmt::Block(_)
        | Stmt::Macro(_)
        | Stmt::CallBlock(_) => block(statement)?,
        Stmt::Do(statement) => Stmt::Do(respan(
            statement,
            Do {
                call: call(&statement.call)?,
            },
        )),
        Stmt::Continue(node) => Stmt::Continue(respan(node, minijinja::machinery::ast::Continue)),
        Stmt::Break(node) => Stmt::Break(respan(node, minijinja::machinery::ast::Break)),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(syntax("a chat template cannot include, import or extend another one"));
        }
    })
}

/// Statements with a body.
fn block<'a>(statement: &Stmt<'a>) -> Result<Stmt<'a>> {
    Ok(match statement {
        Stmt::ForLoop(for_loop) => Stmt::ForLoop(respan(
            for_loop,
            ForLoop {
                target: target(&for_loop.target)?,
                iter: through(ITERATED, expression(&for_loop.iter)?),
                filter_expr: optional(&for_loop.filter_expr)?,
                recursive: for_loop.recursive,
                body: body(&for_loop.body)?,
                else_body: body(&for_loop.else_body)?,
            },
        )),
        Stmt::IfCond(condition) => Stmt::IfCond(respan(
            condition,
            IfCond {
                expr: expression(&condition.expr)?,
                true_body: body(&condition.true_body)?,
                false_body: body(&condition.false_body)?,
            },
        )),
        Stmt::AutoEscape(escape) => Stmt::AutoEscape(respan(
            escape,
            AutoEscape {
                enabled: expression(&escape.enabled)?,
                body: body(&escape.body)?,
            },
        )),
        Stmt::FilterBlock(block) => Stmt::FilterBlock(respan(
            block,
            FilterBlock {
                filter: expression(&block.filter)?,
                body: body(&block.body)?,
            },
        )),
        Stmt::Block(block) => Stmt::Block(respan(
            block,
            Block {
                name: block.name,
                required: block.required,
                body: body(&block.body)?,
            },
        )),
        Stmt::Macro(declaration) => Stmt::Macro(macro_declaration(declaration)?),
        Stmt::CallBlock(block) => Stmt::CallBlock(respan(
            block,
            CallBlock {
                call: call(&block.call)?,
                macro_decl: macro_declaration(&block.macro_decl)?,
            },
        )),
        _ => return Err(syntax("not a block")),
    })
}

fn with_block<'a>(with: &Spanned<WithBlock<'a>>) -> Result<Stmt<'a>> {
    let assignments = with.assignments.iter();
    let assignments = assignments.map(|(name, value)| Ok((target(name)?, expression(value)?)));
    Ok(Stmt::WithBlock(respan(
        with,
        WithBlock {
            assignments: assignments.collect::<Result<_>>()?,
            body: body(&with.body)?,
        },
    )))
}

fn expression<'a>(expr: &Expr<'a>) -> Result<Expr<'a>> {
    Ok(match expr {
        Expr::Var(var) => Expr::Var(respan(var, Var { id: var.id })),
        Expr::Const(constant) => {
            let value = constant.value.clone();
            Expr::Const(respan(constant, Const { value }))
        }
        Expr::Slice(node) => slice(node)?,
        Expr::UnaryOp(operation) => {
            let negates_number = matches!(operation.op, UnaryOpKind::Neg);
            let op = if negates_number {
                UnaryOpKind::Neg
            } else {
                UnaryOpKind::Not
            };
            let expr = expression(&operation.expr)?;
            Expr::UnaryOp(respan(operation, UnaryOp { op, expr }))
        }
        Expr::BinOp(operation) => binary(operation)?,
        Expr::Compare(compare) => comparison(compare)?,
        Expr::IfExpr(condition) => Expr::IfExpr(respan(
            condition,
            IfExpr {
                test_expr: expression(&condition.test_expr)?,
                true_expr: expression(&condition.true_expr)?,
                false_expr: optional(&condition.false_expr)?,
            },
        )),
        Expr::Filter(filter) => Expr::Filter(respan(
            filter,
            Filter {
                name: filter.name,
                expr: optional(&filter.expr)?,
                args: arguments(&filter.args, None)?,
            },
        )),
        Expr::Test(test) => Expr::Test(respan(
            test,
            Test {
                name: test.name,
                expr: expression(&test.expr)?,
                args: arguments(&test.args, None)?,
            },
        )),
        Expr::GetAttr(attribute) => Expr::GetAttr(respan(
            attribute,
            GetAttr {
                expr: expression(&attribute.expr)?,
                name: attribute.name,
            },
        )),
        Expr::GetItem(item) => get_item(item)?,
        Expr::Call(node) => Expr::Call(call(node)?),
        Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => container(expr)?,
    })
}

fn slice<'a>(slice: &Spanned<Slice<'a>>) -> Result<Expr<'a>> {
    let node = Slice {
        expr: metered(ADDEND, &slice.expr)?,
        start: optional(&slice.start)?,
        stop: optional(&slice.stop)?,
        step: optional(&slice.step)?,
    };
    Ok(through(SETTLED, Expr::Slice(respan(slice, node))))
}

/// `a < b in c`
fn comparison<'a>(compare: &Spanned<Compare<'a>>) -> Result<Expr<'a>> {
    let ops = compare.ops.iter().map(|part| {
        let expr = metered(SOUGHT, &part.expr)?;
        Ok(CompareOp { op: part.op, expr })
    });
    let node = Compare {
        expr: metered(SOUGHT, &compare.expr)?,
        ops: ops.collect::<Result<_>>()?,
    };
    Ok(Expr::Compare(respan(compare, node)))
}

fn binary<'a>(operation: &Spanned<BinOp<'a>>) -> Result<Expr<'a>> {
    let (left, right) = match operation.op {
        BinOpKind::Add => (Some(ADDEND), Some(ADDEND)),
        BinOpKind::Concat => (Some(TEXT), Some(TEXT)),
        BinOpKind::In => (Some(SOUGHT), Some(SEARCHED)),
        BinOpKind::Mul => {
            let right = CallArg::Pos(expression(&operation.right)?);
            return Ok(through_with(TIMES, expression(&operation.left)?, vec![right]));
        }
        BinOpKind::Eq | BinOpKind::Ne | BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte => {
            (Some(COMPARED), Some(COMPARED))
        }
        // Numbers and conditions.
        BinOpKind::ScAnd
        | BinOpKind::ScOr
        | BinOpKind::Sub
        | BinOpKind::Div
        | BinOpKind::FloorDiv
        | BinOpKind::Rem
        | BinOpKind::Pow => (None, None),
    };
    let side = |name, side| match name {
        Some(name) => metered(name, side),
        None => expression(side),
    };
    let (left, right) = (side(left, &operation.left)?, side(right, &operation.right)?);
    let op = operation.op;
    let result = Expr::BinOp(respan(operation, BinOp { op, left, right }));
    Ok(match op {
        BinOpKind::Add => through(SETTLED, result),
        _ => result,
    })
}

fn get_item<'a>(item: &Spanned<GetItem<'a>>) -> Result<Expr<'a>> {
    let named = is_short(&item.subscript_expr);
    let text_key = named && matches!(&item.subscript_expr, Expr::Const(key) if key.value.as_str().is_some());
    let expr = expression(&item.expr)?;
    let subscript_expr = expression(&item.subscript_expr)?;
    let node = GetItem {
        // A numeric index counts the characters of a text from its start.
        expr: if text_key { expr } else { through(INDEXED, expr) },
        subscript_expr: if named {
            subscript_expr
        } else {
            through(KEY, subscript_expr)
        },
    };
    Ok(Expr::GetItem(respan(item, node)))
}

/// A literal list, tuple or map.
fn container<'a>(expr: &Expr<'a>) -> Result<Expr<'a>> {
    let (node, parts) = match expr {
        Expr::List(list) => {
            let items = expressions(&list.items)?;
            (Expr::List(respan(list, List { items })), &list.items)
        }
        Expr::Tuple(tuple) => {
            let items = expressions(&tuple.items)?;
            (Expr::Tuple(respan(tuple, Tuple { items })), &tuple.items)
        }
        Expr::Map(map) => {
            let keys = map.keys.iter().map(|key| metered(KEY, key));
            let keys = keys.collect::<Result<_>>()?;
            let values = expressions(&map.values)?;
            (Expr::Map(respan(map, Map { keys, values })), &map.values)
        }
        _ => return expression(expr),
    };
    // A tuple of constants is created once, at compile time; lists and maps may change.
    let is_fixed = matches!(expr, Expr::Tuple(_)) && parts.iter().all(|part| matches!(part, Expr::Const(_)));
    Ok(if is_fixed { node } else { through(BUILT, node) })
}

fn call<'a>(node: &Spanned<Call<'a>>) -> Result<Spanned<Call<'a>>> {
    let method = match &node.expr {
        Expr::GetAttr(attribute) => Some(attribute.name),
        _ => None,
    };
    let names_a_value = node.args.iter().any(|arg| matches!(arg, CallArg::Pos(_)));
    if method == Some("cycle") && !names_a_value {
        return Err(syntax("loop.cycle() needs at least one value"));
    }
    // loop.changed(value) compares the value with the previous iteration's value.
    let wrapper = (method == Some("changed")).then_some(COMPARED);
    let args = arguments(&node.args, wrapper)?;
    let expr = expression(&node.expr)?;
    Ok(respan(node, Call { expr, args }))
}

fn arguments<'a>(args: &[CallArg<'a>], wrapper: Option<&'static str>) -> Result<Vec<CallArg<'a>>> {
    let wrapped = |expr: &Expr<'a>| match wrapper {
        Some(name) => metered(name, expr),
        None => expression(expr),
    };
    let args = args.iter().map(|arg| {
        Ok(match arg {
            CallArg::Pos(expr) => CallArg::Pos(wrapped(expr)?),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, wrapped(expr)?),
            CallArg::PosSplat(expr) => CallArg::PosSplat(through(SPREAD, wrapped(expr)?)),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(through(SPREAD, wrapped(expr)?)),
        })
    });
    args.collect()
}

fn macro_declaration<'a>(declaration: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>> {
    let args = declaration.args.iter().map(target);
    let node = Macro {
        name: declaration.name,
        args: args.collect::<Result<_>>()?,
        defaults: expressions(&declaration.defaults)?,
        body: body(&declaration.body)?,
    };
    Ok(respan(declaration, node))
}

/// A name or a list of names to assign to.
fn target<'a>(expr: &Expr<'a>) -> Result<Expr<'a>> {
    match expr {
        Expr::List(list) => {
            let items = list.items.iter().map(target);
            let items = items.collect::<Result<_>>()?;
            Ok(Expr::List(respan(list, List { items })))
        }
        other => expression(other),
    }
}

fn body<'a>(statements: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>> {
    let mut guarded_body = Vec::with_capacity(statements.len());
    for statement in statements {
        let mut attributes = Vec::new();
        let plain = match statement {
            Stmt::Set(set) => Stmt::Set(respan(
                set,
                Set {
                    target: without_attributes(&set.target, &mut attributes)?,
                    expr: expression(&set.expr)?,
                },
            )),
            Stmt::SetBlock(set) => Stmt::SetBlock(respan(
                set,
                SetBlock {
                    target: without_attributes(&set.target, &mut attributes)?,
                    filter: optional(&set.filter)?,
                    body: body(&set.body)?,
                },
            )),
            other => guarded(other)?,
        };
        guarded_body.push(plain);
        guarded_body.extend(attributes);
    }
    Ok(guarded_body)
}

/// The target of an assignment, with variables in place of attributes, and the statements that set these attributes.
fn without_attributes<'a>(target: &Expr<'a>, attributes: &mut Vec<Stmt<'a>>) -> Result<Expr<'a>> {
    match target {
        Expr::GetAttr(attribute) => {
            let Some(&id) = ATTRIBUTE_VALUES.get(attributes.len()) else {
                return Err(syntax("one tag sets at most eight attributes of namespaces"));
            };
            let span = attribute.span();
            let variable = |id| Expr::Var(Spanned::new(Var { id }, span));
            let name = Value::from(attribute.name);
            let args = vec![
                CallArg::Pos(expression(&attribute.expr)?),
                CallArg::Pos(Expr::Const(Spanned::new(Const { value: name }, span))),
                CallArg::Pos(variable(id)),
            ];
            let expr = variable(SET_ATTRIBUTE);
            let call = Spanned::new(Call { expr, args }, span);
            attributes.push(Stmt::Do(Spanned::new(Do { call }, span)));
            Ok(variable(id))
        }
        Expr::List(list) => {
            let items = list.items.iter().map(|item| without_attributes(item, attributes));
            let items = items.collect::<Result<_>>()?;
            Ok(Expr::List(respan(list, List { items })))
        }
        other => expression(other),
    }
}

fn expressions<'a>(exprs: &[Expr<'a>]) -> Result<Vec<Expr<'a>>> {
    exprs.iter().map(expression).collect()
}

fn optional<'a>(expr: &Option<Expr<'a>>) -> Result<Option<Expr<'a>>> {
    expr.as_ref().map(expression).transpose()
}

/// The operand, wrapped in the filter `name` unless it is a short constant.
fn metered<'a>(name: &'static str, expr: &Expr<'a>) -> Result<Expr<'a>> {
    let result = expression(expr)?;
    Ok(if is_short(expr) { result } else { through(name, result) })
}

fn is_short(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Const(constant) if constant.value.as_str().is_none_or(|text| text.len() <= SHORT_BYTES))
}

fn through<'a>(name: &'static str, expr: Expr<'a>) -> Expr<'a> {
    through_with(name, expr, Vec::new())
}

fn through_with<'a>(name: &'static str, expr: Expr<'a>, args: Vec<CallArg<'a>>) -> Expr<'a> {
    let span = expr.span();
    let expr = Some(expr);
    Expr::Filter(Spanned::new(Filter { name, expr, args }, span))
}

fn respan<T, U>(old: &Spanned<T>, node: U) -> Spanned<U> {
    Spanned::new(node, old.span())
}

fn syntax(problem: &'static str) -> Error {
    Error::new(ErrorKind::SyntaxError, problem)
}
